"""The plan file: a model, a GPU, how many, what is asked, and what may be chosen."""

from typing import Literal

from splitpoint.inputs.deployment import Routing
from splitpoint.inputs.engine import EngineName, KvDtype
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.workload import Slo, Workload
from splitpoint.record import Record


class EnginePlan(Record, frozen=True, kw_only=True):
    """The `[engine]` table: an `Engine` whose drafts may be a list to consider."""

    name: EngineName = "vllm"
    version: str = "0.32.0"
    utilization: float = 0.92
    kv_dtype: KvDtype = "auto"
    state_dtype: KvDtype = "auto"
    block_size: int | None = None
    batched_tokens: int | None = None
    max_seqs: int | None = None
    max_len: int | None = None
    prefix_caching: bool = True
    async_scheduling: bool = True
    graphs: bool = True
    drafts: int | tuple[int, ...] = 0
    acceptance: tuple[float, ...] = ()


class Search(Record, frozen=True, kw_only=True):
    """The `[search]` table: what may be varied. Empty tuples mean every legal value."""

    roles: tuple[Literal["mixed", "split"], ...] = ("mixed", "split")
    tp: tuple[int, ...] = ()
    dp: tuple[int, ...] = ()
    pp: tuple[int, ...] = (1,)
    ep: tuple[Literal[1, "all"], ...] = ()
    routing: tuple[Routing, ...] = ("prefix_aware", "round_robin")
    requests: int | None = None
    all_gpus: bool = False
    kv_pool_gib: float | None = None
    transfer_bandwidth: float | None = None


class Plan(Record, frozen=True, kw_only=True):
    """A whole plan file. `gpus` is the most that may be used."""

    model: str
    gpu: str | Gpu
    gpus: int
    workload: Workload
    slo: Slo
    engine: EnginePlan = EnginePlan()
    search: Search = Search()
    name: str | None = None
