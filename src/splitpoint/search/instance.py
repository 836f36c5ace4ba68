"""One instance made ready: a topology with its settings, its memory and its speed."""

from bisect import bisect_left
from pathlib import Path

from msgspec.structs import replace

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import GIB, Gpu
from splitpoint.inputs.model import Model
from splitpoint.pricing.blocks import blocks_per_request, layout
from splitpoint.pricing.concurrency import num_blocks
from splitpoint.pricing.engines import resolved
from splitpoint.pricing.ladder import Ladder, ladder
from splitpoint.pricing.layout import KvLayout
from splitpoint.record import Record
from splitpoint.timing.bake import step_curve
from splitpoint.timing.curve import StepCurve
from splitpoint.timing.drafts import acceptance, tokens_per_step
from splitpoint.timing.fitted import FittedCurve, applied
from splitpoint.timing.fitted import read as read_fitted
from splitpoint.timing.host import host_speed


class Holding(Record, frozen=True, kw_only=True):
    """What one rank holds: its GPU, resolved engine, KV layout, memory ladder, and the pool in
    bytes (the ladder's, or the size that the plan states)."""

    gpu: Gpu
    topology: Topology
    engine: Engine
    layout: KvLayout
    ladder: Ladder
    kv_bytes: int

    @property
    def kv_blocks(self) -> int:
        """Blocks of one rank's pool, block 0 included."""
        return num_blocks(self.layout, self.kv_bytes)

    @property
    def usable_bytes(self) -> int:
        """Bytes of the blocks that requests can take."""
        return max(self.kv_blocks - 1, 0) * self.layout.block_bytes

    def blocks(self, tokens: int) -> int:
        """Blocks that a request of so many tokens takes on one rank."""
        return blocks_per_request(self.layout, max(tokens, 1))

    def request_bytes(self, tokens: int) -> int:
        """Bytes of those blocks."""
        return self.blocks(tokens) * self.layout.block_bytes

    def requests_held(self, tokens: int) -> int:
        """Requests of so many tokens that one rank's pool holds, rounded down."""
        return max(self.kv_blocks - 1, 0) // self.blocks(tokens)

    def longest(self, limit: int) -> int:
        """The most tokens of one request, up to `limit`, that the pool holds, in whole blocks below
        it; 0 if it holds none."""
        if self.requests_held(limit):
            return limit
        block = self.layout.block_tokens
        counts = range(limit // block + 1)
        held = bisect_left(counts, 1, key=lambda n: not self.requests_held(n * block)) - 1
        return block * max(held, 0)


class Instance(Record, frozen=True, kw_only=True):
    """A holding with its step times. `tokens_per_step`: mean tokens of a decode step. `fitted`:
    the measurement that corrected the step times, if any."""

    holding: Holding
    curve: StepCurve
    acceptance: tuple[float, ...]
    fitted: FittedCurve | None = None

    @property
    def gpu(self) -> Gpu:
        """The GPU that it runs on."""
        return self.holding.gpu

    @property
    def topology(self) -> Topology:
        """The parallel degrees."""
        return self.holding.topology

    @property
    def engine(self) -> Engine:
        """The resolved settings."""
        return self.holding.engine

    @property
    def front_s(self) -> float:
        """Seconds of a request outside of steps: measured, else the engine's."""
        measured = self.fitted.factors.front_s if self.fitted else None
        return host_speed(self.engine).front if measured is None else measured

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens of one decode step per sequence."""
        return tokens_per_step(self.acceptance)

    def requests_held(self, tokens: int) -> int:
        """Requests of so many tokens that one rank's pool holds."""
        return self.holding.requests_held(tokens)


def holding(
    model: Model, gpu: Gpu, topology: Topology, engine: Engine, *, kv_pool_gib: float | None
) -> Holding:
    """What one rank of this topology holds; `kv_pool_gib` overrides what the ladder leaves.

    Without a stated `max_len` vLLM is given one that its pool holds: it starts with no other.
    """
    settings = resolved(engine, gpu, topology, model)
    rungs = ladder(model, gpu, topology, settings)
    held = Holding(
        gpu=gpu,
        topology=topology,
        engine=settings,
        layout=layout(model, topology, settings),
        ladder=rungs,
        kv_bytes=rungs.kv_bytes if kv_pool_gib is None else int(kv_pool_gib * GIB),
    )
    if engine.max_len is not None or engine.name != "vllm" or settings.max_len is None:
        return held
    longest = held.longest(settings.max_len)
    return replace(held, engine=replace(settings, max_len=longest)) if longest else held


def instance(model: Model, held: Holding) -> Instance:
    """The holding with its step times baked, corrected by a curve file where the engine names
    one."""
    gpu = held.gpu
    curve = step_curve(model, gpu, held.topology, held.engine)
    fitted = None
    if held.engine.curve is not None:
        fitted = read_fitted(Path(held.engine.curve))
        curve = applied(
            fitted, curve, held.engine, model=model.name, gpu=gpu.name, where=held.engine.curve
        )
    return Instance(
        holding=held, curve=curve, acceptance=acceptance(held.engine, model), fitted=fitted
    )
