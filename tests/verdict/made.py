"""Points made by hand: what a comparison needs, the rest at neutral values."""

from msgspec.structs import replace

from splitpoint.inputs.deployment import Deployment, Pool, Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.routing import Routing
from splitpoint.inputs.slo import Slo
from splitpoint.verdict.answer import Point, Quantiles, Stack

SLO = Slo(ttft_s=2.0, tpot_s=0.05, percentile=90)
ENGINE = Engine(batched_tokens=2048, max_seqs=64, max_len=16384)


def pool(role: str, replicas: int) -> Pool:
    """A pool of one-GPU instances."""
    kind = {"mixed": "mixed", "prefill": "prefill", "decode": "decode"}[role]
    return Pool(role=kind, topology=Topology(), replicas=replicas, engine=ENGINE)  # type: ignore[arg-type]


def deployment(prefill: int, decode: int, routing: Routing = "prefix_aware") -> Deployment:
    """A split of so many instances, or a mixed deployment where `decode` is 0."""
    pools = (
        (pool("prefill", prefill), pool("decode", decode)) if decode else (pool("mixed", prefill),)
    )
    return Deployment(pools=pools, routing=routing)


def flat(seconds: float) -> Quantiles:
    """The same at every percentile."""
    return Quantiles(mean=seconds, p50=seconds, p90=seconds, p99=seconds, at_slo=seconds)


def made(
    name: str,
    *,
    prefill: int = 4,
    decode: int = 0,
    goodput: float = 8.0,
    attainment: float = 1.0,
    meets: bool = True,
    output: float = 100.0,
    routing: Routing = "prefix_aware",
    requests: int = 1000,
) -> Point:
    """A point of one arm; mixed unless it has decode instances."""
    chosen = deployment(prefill, decode, routing)
    return Point(
        name=name,
        deployment=chosen,
        gpus=chosen.gpus,
        load="trace",
        requests=requests,
        success=1.0,
        attainment=attainment,
        meets_slo=meets,
        ttft=flat(1.0),
        tpot=flat(0.02),
        e2el=flat(5.0),
        ttft_stack=Stack(queue=0.5, prefill=0.5, transfer=0.0, decode_wait=0.0),
        total_tok_s=output * chosen.gpus * 2,
        output_tok_s=output * chosen.gpus,
        total_tok_s_gpu=output * 2,
        output_tok_s_gpu=output,
        goodput_s=goodput,
        interactivity=50.0,
        pools=(),
        first_wall="none reached",
    )


def other(point: Point, **changes: object) -> Point:
    """The point with some values changed."""
    return replace(point, **changes)
