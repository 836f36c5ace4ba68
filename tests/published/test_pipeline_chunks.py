"""Chunk sizes of a pipeline, as vLLM issue 41682 (May 2026) measured them.

DeepSeek-R1-0528 fp4 on four GB300, PP4, prompts of 128K tokens, one token out: 1,678 tok/s per GPU
without chunks, about 1,500 with chunks of 32K, 1,536 with 12K, 1,347 with 4K. Its chunks did not
overlap, as asynchronous scheduling held up the stages until pull request 38726: such a prompt takes
all stages, one after the other, for every chunk.
"""

import numpy as np
import pytest

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.facts import gpu
from splitpoint.inputs.huggingface import load_model
from splitpoint.search.instance import holding, instance
from splitpoint.timing.curve import PICO, StepCurve

TOKENS = 131_072
MEASURED = {131_072: 1678, 32_768: 1500, 12_288: 1536, 4_096: 1347}


def stages(chunk: int) -> tuple[StepCurve, ...]:
    """The four stages of the engine with this token budget; V3.1 has R1's shape."""
    model, gb300 = load_model("nvidia/DeepSeek-V3.1-NVFP4"), gpu("GB300")
    engine = Engine(batched_tokens=chunk, max_len=140_000, prefix_caching=False, kv_dtype="fp8")
    held = holding(model, gb300, Topology(pp=4), engine, kv_pool_gib=None)
    return instance(model, held).curve.stages


def seconds(stage: StepCurve, chunk: int) -> float:
    """All chunks of the prompt in one stage."""
    before = np.arange(0, TOKENS, chunk)
    new = np.minimum(chunk, TOKENS - before)
    pairs = new * before + new * (new + 1) // 2
    picos = stage.mixed[new] + stage.prefill_pair * pairs + stage.prefill_prefix * before
    return float(picos.sum()) * PICO


@pytest.mark.parametrize("chunk", MEASURED)
def test_a_prompt_whose_chunks_do_not_overlap_is_as_slow_as_measured(chunk: int) -> None:
    taken = sum(seconds(stage, chunk) for stage in stages(chunk))
    # On 2026-11-30 9, 21, 15 and 11% too fast; nothing was fitted to these rows.
    assert TOKENS / taken / 4 == pytest.approx(MEASURED[chunk], rel=0.25)
