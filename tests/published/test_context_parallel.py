"""Decode context parallelism as vllm-project/vllm#25049 (2025-09-17) measured it.

DeepSeek-R1-0528 on eight GPUs with 4,096 requests at once, output tok/s of all eight. Lengths of
2,048 and 1,024 tokens follow from the printed totals; that the GPUs are H200 is assumed.
"""

import pytest

from splitpoint.inputs.engine import Engine
from splitpoint.inputs.plan import DeploymentPlan, PoolPlan
from splitpoint.inputs.traces.requests import shaped
from splitpoint.inputs.workload import Workload
from splitpoint.verdict.replay import replay

# By dcp: without drafts, and with one.
PLAIN = {1: 2332, 4: 2983, 8: 3502}
DRAFTED = {1: 3039, 4: 3723, 8: 3601}
REQUESTS = 4096


def output_tok_s(dcp: int, drafts: int) -> float:
    """Output tokens a second of the eight GPUs, all requests sent at once."""
    # Accepted of one draft: DeepSeek's own report of V3 says 85-90%.
    engine = Engine(
        version="0.11.2",
        prefix_caching=False,
        utilization=0.9,
        drafts=drafts,
        acceptance=(0.85,) * drafts,
    )
    pool = PoolPlan(role="mixed", tp=8, dcp=dcp, replicas=1, engine=engine)
    plan = DeploymentPlan(
        model="deepseek-ai/DeepSeek-R1",
        gpu="H200",
        pools=(pool,),
        routing="round_robin",
        decode_routing="round_robin",
    )
    work = Workload(isl=2048, osl=1024, concurrency=REQUESTS, requests=REQUESTS)
    return replay(plan, shaped(work, None, REQUESTS))[0].output_tok_s_gpu * 8


@pytest.mark.parametrize(("measured", "drafts"), [(PLAIN, 0), (DRAFTED, 1)])
def test_throughput_by_dcp_is_as_measured(measured: dict[int, int], drafts: int) -> None:
    ours = {dcp: output_tok_s(dcp, drafts) for dcp in measured}
    # On 2026-11-30 +27, +52, +29% without drafts, +19, +32, +27% with one; nothing was fitted. Not
    # the experts: Triton ran such slices then as now, as fast as priced in the tables of 0.19 and
    # 0.24. Products before DeepGEMM miss a twentieth of a step; the rest is not known (timing.md).
    assert ours == pytest.approx(measured, rel=0.55)
    # What it is for: the pool holds more requests, with drafts sooner than without.
    assert ours[8] > 1.4 * ours[1] if not drafts else ours[4] > ours[8] > 1.15 * ours[1]
