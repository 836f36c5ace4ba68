"""The wall table of the agentic study (8 x H20, Qwen3-30B-A3B), all twelve cells.

As published: occupancy of the decode pools in per cent, eight concurrent decodes of a length on
8, 4 and 2 decode GPUs with a pool of 28.7 GB each (printed there as about 28 GB), at 98,304 bytes
a token. The study's repository is not to be had; figures are quoted.
"""

import pytest

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.facts import gpu
from splitpoint.inputs.huggingface import load_model
from splitpoint.pricing.blocks import blocks_per_request, layout
from splitpoint.pricing.concurrency import num_blocks
from splitpoint.pricing.engines import resolved

POOL = 28_700_000_000
DECODES = 8
WALLS = (
    ("chatbot, 2k", 2_000, ("0.7", "1.4", "2.7")),
    ("mean", 33_600, ("12", "23", "46")),
    ("p90", 101_000, ("35", "69", "138")),
    ("p99", 132_000, ("45", "90", "181")),
)


@pytest.mark.parametrize(("name", "tokens", "printed"), WALLS, ids=[row[0] for row in WALLS])
def test_a_row_of_the_wall_table(name: str, tokens: int, printed: tuple[str, str, str]) -> None:
    model = load_model("Qwen/Qwen3-30B-A3B")
    one = Topology()
    kv = layout(model, one, resolved(Engine(), gpu("H20"), one, model))
    assert kv.block_bytes // kv.block_tokens == 98304
    need = DECODES * blocks_per_request(kv, tokens)
    shares = [100 * need / (gpus * num_blocks(kv, POOL)) for gpus in (8, 4, 2)]
    digits = 1 if tokens == 2_000 else 0
    assert tuple(f"{share:.{digits}f}" for share in shares) == printed
