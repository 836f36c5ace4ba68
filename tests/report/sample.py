"""Hand-made answers and runs: what the report and the recipes are built from, without a search."""

import numpy as np

from splitpoint.inputs.deployment import Deployment, Pool, Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import Flops, Gpu, Link
from splitpoint.inputs.plan import Plan
from splitpoint.inputs.routing import Role, Routing
from splitpoint.inputs.slo import Slo
from splitpoint.inputs.workload import Workload
from splitpoint.run import Instances, Requests, Run, Series
from splitpoint.verdict.answer import (
    SCHEMA_VERSION,
    Answer,
    Claim,
    Comparison,
    Condition,
    Figure,
    Holding,
    Point,
    PoolState,
    Quantiles,
    Rejected,
    RequestCost,
    Stack,
    Verdict,
    Wall,
    WorkloadSummary,
)

GIB = 1024**3
HOSTILE = "<script>alert(1)</script>\"'`$(touch /tmp/pwned)`; \n# [x](y) | & \u202e\x1b[31m"

ENGINE = Engine(utilization=0.9, batched_tokens=8192, max_seqs=256, max_len=135168, max_graph=512)

H20 = Gpu(
    name="H20",
    architecture="hopper",
    hbm_gib=95.58,
    marketed_gb=96.0,
    bandwidth=4.0e12,
    flops=Flops(bf16=148e12, fp8=296e12),
    gpus_per_node=8,
    domain=8,
    inside=Link(kind="nvswitch", bandwidth=450e9, latency=2e-6),
    outside=Link(kind="ib", bandwidth=50e9, latency=5e-6),
    sources={},
)


def pool(role: Role, replicas: int, topology: Topology | None = None, drafts: int = 0) -> Pool:
    """A pool of sample instances."""
    import msgspec

    engine = msgspec.structs.replace(ENGINE, drafts=drafts)
    return Pool(role=role, topology=topology or Topology(), replicas=replicas, engine=engine)


MIXED = Deployment(pools=(pool("mixed", 8),))
SPLIT = Deployment(pools=(pool("prefill", 6), pool("decode", 2)))


def quantiles(p50: float, p90: float) -> Quantiles:
    """Quantiles around a median and a 90th percentile."""
    return Quantiles(mean=0.3 * p50 + 0.3 * p90, p50=p50, p90=p90, p99=2.1 * p90, at_slo=p90)


def state(role: str, name: str, used: float, held: float = 0.0) -> PoolState:
    """What a pool saw."""
    return PoolState(
        role=role,
        name=name,
        kv_used_mean=used,
        kv_used_p99=min(1.0, used * 1.8),
        kv_held_mean=held,
        busy_share=0.71,
        preemptions=3 if used > 0.5 else 0,
        prefix_hit_share=0.0 if role == "decode" else 0.66,
        waiting_mean=1.4,
    )


def point(
    deployment: Deployment,
    *,
    name: str | None = None,
    load: str = "trace",
    total: float = 6200.0,
    tpot: float = 0.021,
    ttft: float = 0.8,
    success: float = 1.0,
    attainment: float = 0.93,
    meets: bool = True,
    frontier: bool = True,
) -> Point:
    """One simulated point with numbers that hang together."""
    split = deployment.split
    pools = (
        (state("prefill", "P 6xTP1", 0.82, 0.31), state("decode", "D 2xTP1", 0.44))
        if split
        else (state("mixed", "8xTP1", 0.57),)
    )
    stack = (
        Stack(queue=0.4 * ttft, prefill=0.3 * ttft, transfer=0.2 * ttft, decode_wait=0.1 * ttft)
        if split
        else Stack(queue=0.35 * ttft, prefill=0.65 * ttft, transfer=0.0, decode_wait=0.0)
    )
    return Point(
        name=name or f"{deployment} {deployment.routing}",
        deployment=deployment,
        gpus=deployment.gpus,
        load=load,
        requests=850,
        success=success,
        attainment=attainment,
        meets_slo=meets,
        ttft=quantiles(ttft, 4 * ttft),
        tpot=quantiles(tpot, 1.6 * tpot),
        e2el=quantiles(ttft + 200 * tpot, 4 * ttft + 320 * tpot),
        ttft_stack=stack,
        total_tok_s=total * deployment.gpus,
        output_tok_s=total * deployment.gpus * 0.014,
        total_tok_s_gpu=total,
        output_tok_s_gpu=total * 0.014,
        goodput_s=1.31 * attainment,
        interactivity=1 / tpot,
        pools=pools,
        first_wall="prefill KV pool held by unfinished handoffs" if split else "none",
        on_frontier=frontier,
    )


def deployment(
    split: bool,
    first: int,
    second: int = 0,
    routing: Routing = "prefix_aware",
    topology: Topology | None = None,
) -> Deployment:
    """A split of `first` prefill and `second` decode instances, or `first` mixed ones."""
    pools = (
        (pool("prefill", first, topology), pool("decode", second, topology))
        if split
        else (pool("mixed", first, topology),)
    )
    return Deployment(pools=pools, routing=routing)


def points() -> tuple[Point, ...]:
    """Both arms, two routings, two topologies."""
    two = Topology(tp=2)
    return (
        point(MIXED, total=6200, tpot=0.024, ttft=0.5),
        point(
            deployment(False, 8, routing="round_robin"),
            total=5100,
            tpot=0.031,
            ttft=2.9,
            attainment=0.71,
            meets=False,
            frontier=False,
        ),
        point(deployment(False, 4, topology=two), total=5400, tpot=0.019, ttft=0.62),
        point(SPLIT, total=5900, tpot=0.0125, ttft=2.2, attainment=0.84, meets=False),
        point(
            deployment(True, 4, 4), total=5200, tpot=0.0098, ttft=3.1, attainment=0.79, meets=False
        ),
        point(
            deployment(True, 6, 2, routing="round_robin"),
            total=3100,
            tpot=0.0118,
            ttft=17.4,
            success=0.87,
            attainment=0.31,
            meets=False,
            frontier=False,
        ),
        point(
            deployment(True, 2, 2, topology=two),
            total=4700,
            tpot=0.0081,
            ttft=3.8,
            attainment=0.66,
            meets=False,
        ),
    )


def figure(
    name: str, value: float, unit: str, origin: str = "computed", source: str = ""
) -> Figure:
    """A figure of any origin."""
    return Figure(name=name, value=value, unit=unit, origin=origin, source=source)  # type: ignore[arg-type]


RUNGS = (
    figure("physical", 96.0 * GIB, "B", "published", "vendor's figure in GiB"),
    figure("driver", 0.42 * GIB, "B", "published", "nvidia-smi of an H20, 97,871 MiB"),
    figure("utilization", 9.56 * GIB, "B", "computed", "1 - 0.90 of what the driver reports"),
    figure("weights", 56.9 * GIB, "B", "computed", "30.5e9 parameters, bf16"),
    figure("activations", 1.42 * GIB, "B", "assumed", "model of a 8,192-token profile run"),
    figure("non_torch", 0.61 * GIB, "B", "measured", "median of 14 start-up logs"),
    figure("graphs", 0.74 * GIB, "B", "assumed", "35 sizes, 21 MiB each"),
    figure("kv", 26.35 * GIB, "B", "computed", "what the rungs above leave"),
)

HOLDINGS = (
    Holding(
        topology="TP1 budget=8,192",
        rungs=RUNGS,
        kv_bytes=int(26.35 * GIB),
        kv_blocks=17988,
        concurrency=8.57,
        fits=True,
    ),
    Holding(
        topology="TP2 budget=8,192",
        rungs=RUNGS,
        kv_bytes=int(54.3 * GIB),
        kv_blocks=74137,
        concurrency=35.3,
        fits=True,
    ),
)


def wall(side: str, name: str, need: float, words: str) -> Wall:
    """A wall over a pool of 26.35 GiB."""
    return Wall(
        side=side,  # type: ignore[arg-type]
        deployment=name,
        demand=figure("KV of requests in flight", need * 26.35 * GIB, "B", "simulated"),
        pool=figure("KV pool", 26.35 * GIB, "B"),
        occupancy=need,
        peak=need,
        words=words,
    )


WALLS = (
    wall("mixed", "8xTP1", 0.47, "8 requests of 33.6k tokens over 8 pools"),
    wall("prefill", "P 6xTP1 + D 2xTP1", 1.12, "prefills in flight and blocks held for transfer"),
    wall("decode", "P 6xTP1 + D 2xTP1", 0.46, "8 requests of 33.6k tokens over 2 pools"),
)

VERDICT = Verdict(
    choice="mixed",
    headline="Keep prefill and decode together: 8xTP1 serves 11% more within the SLO than the "
    "best split, P 6xTP1 + D 2xTP1.",
    reasons=(
        "The split's prefill side fills first: its six pools are 112% asked for.",
        "Transfers add 0.44 s to a TTFT of 2.2 s, and save 11 ms of decode stall per token.",
    ),
    comparisons=(
        Comparison(
            basis="equal routing",
            routing="prefix_aware",
            split="P 6xTP1 + D 2xTP1 prefix_aware",
            mixed="8xTP1 prefix_aware",
            winner="mixed",
            by="goodput per GPU",
            margin=0.11,
            words="attainment 93% against 84%",
        ),
        Comparison(
            basis="equal routing",
            routing="round_robin",
            split="P 6xTP1 + D 2xTP1 round_robin",
            mixed="8xTP1 round_robin",
            winner="mixed",
            by="goodput per GPU",
            margin=1.29,
            words="attainment 71% against 31%",
        ),
        Comparison(
            basis="each at its best routing",
            routing=None,
            split="P 6xTP1 + D 2xTP1 prefix_aware",
            mixed="8xTP1 prefix_aware",
            winner="mixed",
            by="goodput per GPU",
            margin=0.11,
            words="both are best with prefix_aware",
        ),
    ),
    conditions=(
        Condition(
            name="prefill is compute-bound",
            holds=True,
            value=figure("arithmetic intensity", 1450.0, "FLOP/B"),
            threshold=figure("ridge", 37.0, "FLOP/B", "published", "148 TFLOP/s / 4.0 TB/s"),
            margin=38.2,
            words="after 71% cache hits",
        ),
        Condition(
            name="decode is memory-bound",
            holds=True,
            value=figure("arithmetic intensity", 6.1, "FLOP/B"),
            threshold=figure("ridge", 37.0, "FLOP/B", "published", "148 TFLOP/s / 4.0 TB/s"),
            margin=0.83,
            words="at a mean batch of 4",
        ),
        Condition(
            name="both KV walls below admission",
            holds=False,
            value=figure("prefill wall", 1.12, "share", "simulated"),
            threshold=figure("full pool", 1.0, "share"),
            margin=-0.12,
            words="the prefill side is full",
        ),
        Condition(
            name="transfer below the stall it saves",
            holds=None,
            value=figure("transfer", 0.44, "s", "assumed", "3.5 GB/s per transfer"),
            threshold=figure("stall saved", 2.3, "s", "simulated"),
            margin=None,
            words="cannot be judged while the prefill side is full",
        ),
    ),
    claims=(
        Claim(
            variable="request rate",
            now=1.42,
            flips_at=0.61,
            unit="req/s",
            words="below 0.61 req/s the split wins on TPOT and holds TTFT",
            refute="replay the trace at 0.6 req/s on both",
        ),
        Claim(
            variable="reuse",
            now=0.71,
            flips_at=None,
            unit="share",
            words="no reuse between 0% and 95% makes the split win",
            refute="replay with prefix caching off",
        ),
    ),
    rests_on=("KV transfer bandwidth 3.5 GB/s (assumed)", "peak activations 1.42 GiB (assumed)"),
    chosen="8xTP1 prefix_aware",
)


def answer(**changes: object) -> Answer:
    """The agentic study's answer, roughly; `changes` replace fields."""
    import msgspec

    plain = Answer(
        version=SCHEMA_VERSION,
        splitpoint="0.1.0",
        plan=Plan(
            model="Qwen/Qwen3-30B-A3B",
            gpu=H20,
            gpus=8,
            workload=Workload(preset="agentic-coding"),
            slo=Slo(ttft_s=5.0, tpot_s=0.05, percentile=90),
            name="agentic-h20",
        ),
        model="Qwen/Qwen3-30B-A3B",
        gpu="H20",
        workload=WorkloadSummary(
            name="agentic-coding",
            requests=850,
            duration_s=600.0,
            rate=1.4167,
            isl_mean=44100.0,
            isl_p50=33500.0,
            isl_p90=101000.0,
            isl_p99=132000.0,
            osl_mean=412.0,
            osl_p50=260.0,
            osl_p90=940.0,
            reuse_share=0.71,
            session_reuse_share=0.79,
        ),
        request=RequestCost(
            topology="TP1",
            tokens=33500,
            block_tokens=16,
            page_bytes=32768,
            blocks=2094,
            bytes=2094 * 16 * 98304,
            fixed_share=0.0,
            unused_share=0.0001,
        ),
        holdings=HOLDINGS,
        walls=WALLS,
        points=points(),
        rejected=(
            Rejected(name="P 7xTP1 + D 1xTP1", why="pruned: estimated 41% below the best"),
            Rejected(
                name="1xTP1 fp32",
                why="does not fit",
                shortfall=figure("shortfall", 31.2 * GIB, "B"),
            ),
        ),
        verdict=VERDICT,
        assumptions=(
            figure("KV transfer bandwidth", 3.5e9, "B/s", "assumed", "agentic study's measurement"),
            figure("peak activations", 1.42 * GIB, "B", "assumed", "model of the profile run"),
            figure(
                "attention decode efficiency",
                0.72,
                "share",
                "measured",
                "aiconfigurator tables, H100, scaled",
            ),
        ),
        recipes=("recipes/vllm",),
        notes=("Screened on the first 2,000 requests; finalists ran the whole trace.",),
    )
    return msgspec.structs.replace(plain, **changes)


def run(split: bool = False, instances: int = 4, rows: int = 400, blocks: int = 17988) -> Run:
    """A run with a sawtooth of occupancy per instance; the first half is the prefill pool."""
    draw = np.random.default_rng(3)
    n = 40
    arrive = np.sort(draw.uniform(0, 500, n))
    queue, prefill = draw.exponential(0.4, n), draw.exponential(0.6, n)
    transfer = draw.exponential(0.3, n) if split else np.full(n, np.nan)
    start, end = arrive + queue, arrive + queue + prefill
    first = end + (np.nan_to_num(transfer) + 0.05 if split else 0.0)
    half = instances // 2 if split else instances
    where = draw.integers(0, half, n).astype(np.int32)
    to = (half + draw.integers(0, instances - half, n)).astype(np.int32) if split else where
    requests = Requests(
        isl=draw.integers(100, 40000, n).astype(np.int32),
        osl=draw.integers(10, 500, n).astype(np.int32),
        session=np.arange(n, dtype=np.int32),
        turn=np.zeros(n, np.int32),
        arrive_s=arrive,
        prefill_start_s=start,
        prefill_end_s=end,
        transfer_start_s=end if split else transfer,
        transfer_end_s=end + transfer,
        first_token_s=first,
        end_s=first + 5.0,
        hit_tokens=np.zeros(n, np.int32),
        host_hit_tokens=np.zeros(n, np.int32),
        preemptions=np.zeros(n, np.int32),
        prefill_instance=where,
        decode_instance=to,
        outcome=np.zeros(n, np.int32),
    )
    which = np.tile(np.arange(instances, dtype=np.int32), rows)
    time = np.repeat(np.linspace(0, 600, rows), instances)
    used = (0.5 + 0.45 * np.sin(time / 40 + which)) * blocks
    held = np.where(which < half, 0.3 * used, 0.0) if split else np.zeros_like(used)
    counts = np.full(instances, blocks, np.int32)
    zeros = np.zeros(instances, np.int64)
    return Run(
        name="sample",
        origin="simulated",
        roles=("prefill", "decode") if split else ("mixed",),
        gpus=instances,
        duration_s=600.0,
        requests=requests,
        instances=Instances(
            pool=(np.arange(instances) >= half).astype(np.int32)
            if split
            else np.zeros(instances, np.int32),
            instance=np.arange(instances, dtype=np.int32),
            rank=np.zeros(instances, np.int32),
            kv_blocks=counts,
            busy_s=np.full(instances, 400.0),
            prefill_steps=zeros,
            decode_steps=zeros,
            mixed_steps=zeros,
            preemptions=np.zeros(instances, np.int32),
            hit_tokens=zeros,
            host_hit_tokens=zeros,
            queried_tokens=zeros,
        ),
        series=Series(
            instance=which,
            time_s=time,
            kv_used=used.astype(np.int32),
            kv_cached=((blocks - used) * 0.6).astype(np.int32),
            held=held.astype(np.int32),
            running=(which * 0 + 3).astype(np.int32),
            waiting=(which * 0 + 1).astype(np.int32),
        ),
    )
