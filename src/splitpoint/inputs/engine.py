"""The serving engine and its settings. None means: what the engine would choose by itself."""

from typing import Literal

from splitpoint.inputs.model import Dtype
from splitpoint.record import Record

EngineName = Literal["vllm", "sglang", "trtllm"]
KvDtype = Literal["auto"] | Dtype


class Engine(Record, frozen=True, kw_only=True):
    """Settings of one engine process, shared by all its ranks."""

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
    max_graph: int | None = None
    drafts: int = 0
    acceptance: tuple[float, ...] = ()
