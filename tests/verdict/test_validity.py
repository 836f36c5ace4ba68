"""A prediction says where it leaves what its curve file was measured on."""

from msgspec.structs import replace

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.traces.requests import shaped
from splitpoint.inputs.workload import Workload
from splitpoint.run import Run
from splitpoint.search.instance import Instance
from splitpoint.search.world import candidate_of, world
from splitpoint.sim import simulate
from splitpoint.timing.fitted import Conditions, Range, sealed
from splitpoint.verdict.validity import outside
from tests.search import small
from tests.timing.test_fitted import FITTED


def instance(**more: object) -> Instance:
    """An instance with a curve measured at 4 to 16 sequences and about 500 tokens."""
    curve = replace(
        FITTED,
        conditions=Conditions(
            model=small.model().name,
            gpu="H20",
            engine="vllm",
            engine_version="0.32.0",
            instances=("TP1",),
        ),
        batch=Range(low=4, high=16),
        isl=Range(low=400, high=400),
        tokens=Range(low=500, high=500),
    )
    return replace(small.ready(**more), fitted=sealed(curve))


def told(ready: Instance, *, users: int = 8, isl: int = 400, osl: int = 100) -> tuple[str, ...]:
    candidate = candidate_of([("mixed", ready, 1)], "round_robin")
    requests = shaped(Workload(isl=isl, osl=osl, concurrency=users, requests=64), None, users)
    made = world(candidate, small.model(), tokens=isl)
    run: Run = simulate(made, requests)
    return outside(candidate, run)


def test_inside_nothing_is_said() -> None:
    assert told(instance()) == ()
    assert told(small.ready(), users=1, isl=3000) == ()


def test_other_batches_and_lengths_are_said() -> None:
    (line,) = told(instance(), users=1)
    assert "measured at 4 to 16 sequences decoding together" in line and "here 1 on" in line
    assert told(instance(), users=32)[0].startswith("curve ")
    lines = told(instance(), isl=3000)
    assert any("at 400 input tokens of a request, here 3,000" in line for line in lines)
    assert any("at 500 tokens of a request, here 3,100" in line for line in lines)


def test_other_instances_and_versions_are_said() -> None:
    (line,) = told(instance(topology=Topology(tp=2)))
    assert "was measured on TP1, and is taken for TP2 too" in line
    ready = instance()
    engine = replace(ready.engine, version="0.30.0")
    other = replace(ready, holding=replace(ready.holding, engine=engine))
    assert "vllm 0.32.0, and is taken for 0.30.0" in told(other)[0]
