"""A small search case: Qwen3-30B-A3B on H20s, from the shipped facts, with hand-set lengths."""

from functools import cache

import numpy as np

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.facts import gpu
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.huggingface import load_model
from splitpoint.inputs.model import Model
from splitpoint.inputs.trace import Trace
from splitpoint.search.instance import Instance, holding, instance
from splitpoint.search.loads import Load, profile


def model() -> Model:
    """The agentic study's model."""
    return load_model("Qwen/Qwen3-30B-A3B")


def h20() -> Gpu:
    """The agentic study's GPU."""
    return gpu("H20")


ONE = Topology()


@cache
def ready(topology: Topology = ONE, budget: int = 2048, drafts: int = 0) -> Instance:
    """An instance of few sequences, quick to bake and to simulate."""
    engine = Engine(max_seqs=64, batched_tokens=budget, max_len=16384, drafts=drafts)
    held = holding(model(), h20(), topology, engine, kv_pool_gib=None)
    return instance(model(), held)


def trace(
    requests: int = 40, *, isl: int = 2000, osl: int = 50, rate: float = 4.0, shared: int = 0
) -> Trace:
    """Evenly spaced requests of equal lengths; the first `shared` blocks of 16 are common."""
    blocks = -(-isl // 16)
    own = np.arange(requests * blocks, dtype=np.int64).reshape(requests, blocks) + shared
    own[:, :shared] = np.arange(shared)
    _, ids = np.unique(own, return_inverse=True)
    return Trace(
        name="even",
        arrive_s=np.arange(requests) / rate,
        isl=np.full(requests, isl, np.int32),
        osl=np.full(requests, osl, np.int32),
        session=np.arange(requests, dtype=np.int32),
        turn=np.zeros(requests, np.int32),
        think_s=np.zeros(requests),
        block_starts=np.arange(requests + 1, dtype=np.int64) * blocks,
        block_ids=ids.astype(np.int32).ravel(),
        block_tokens=16,
    )


def load(rate: float = 4.0, *, users: int | None = None, isl: int = 2000, osl: int = 50) -> Load:
    """A load of equal requests."""
    one = trace(isl=isl, osl=osl, rate=rate)
    return Load(
        label="even",
        trace=one,
        profile=profile(one),
        rate=None if users else rate,
        concurrency=users,
    )
