"""Where a model runs: topology of an instance, pools of equal instances, and their routing."""

from typing import Literal

from splitpoint.inputs.engine import Engine
from splitpoint.record import Record

Role = Literal["mixed", "prefill", "decode"]
Routing = Literal[
    "random",
    "round_robin",
    "least_requests",
    "least_kv",
    "power_of_two",
    "session",
    "prefix_aware",
]


class Topology(Record, frozen=True, kw_only=True):
    """One instance: tensor, data, pipeline and expert parallel degrees.

    `dp` > 1 means attention ranks with a KV pool each that share the experts and step together.
    `ep` is 1 (experts cut like any matrix) or tp x dp (each rank holds whole experts).
    """

    tp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of one instance."""
        return self.tp * self.dp * self.pp

    def __str__(self) -> str:
        parts = [f"TP{self.tp}"]
        parts += [f"DP{self.dp}"] if self.dp > 1 else []
        parts += [f"PP{self.pp}"] if self.pp > 1 else []
        parts += ["+EP"] if self.ep > 1 else []
        return "".join(parts)


class Pool(Record, frozen=True, kw_only=True):
    """`replicas` equal instances with one role."""

    role: Role
    topology: Topology
    replicas: int
    engine: Engine

    @property
    def gpus(self) -> int:
        """GPUs of the whole pool."""
        return self.replicas * self.topology.gpus

    def __str__(self) -> str:
        drafts = f" drafts={self.engine.drafts}" if self.engine.drafts else ""
        return f"{self.replicas}x{self.topology}{drafts}"


class Deployment(Record, frozen=True, kw_only=True):
    """Pools and how requests find an instance: one mixed pool, or prefill and decode pools.

    `routing` chooses the mixed or prefill instance, `decode_routing` the decode instance.
    """

    pools: tuple[Pool, ...]
    routing: Routing = "prefix_aware"
    decode_routing: Routing = "least_kv"

    @property
    def gpus(self) -> int:
        """GPUs of all pools."""
        return sum(pool.gpus for pool in self.pools)

    @property
    def split(self) -> bool:
        """Whether prefill and decode run on different GPUs."""
        return any(pool.role != "mixed" for pool in self.pools)

    def __str__(self) -> str:
        letters = {"mixed": "", "prefill": "P ", "decode": "D "}
        return " + ".join(letters[pool.role] + str(pool) for pool in self.pools)
