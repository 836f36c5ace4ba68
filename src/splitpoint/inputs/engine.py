"""The serving engine and its settings. None means: what the engine would choose by itself."""

import re
from typing import Literal

from splitpoint.inputs.checks import Problem, each, within
from splitpoint.inputs.model import Dtype
from splitpoint.record import Record

EngineName = Literal["vllm", "sglang", "trtllm"]
KvDtype = Literal["auto"] | Dtype
GraphMode = Literal["full_and_piecewise", "full_decode_only", "piecewise"]

# Assumed bounds, past any engine in use; step curves hold one entry per sequence and per token
# of the budget, so they also bound memory. 2^24 tokens clears the 10M context of Llama 4 Scout.
MAX_DRAFTS = 16
MAX_BLOCK = 2**17
MAX_BATCHED_TOKENS = 2**20
MAX_SEQS = 2**16
MAX_TOKENS = 2**24


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
    graph_mode: GraphMode = "full_and_piecewise"
    drafts: int = 0
    acceptance: tuple[float, ...] = ()

    def problems(self) -> list[Problem]:
        """Every setting that no engine would take."""
        return [
            *common_problems(self.version, self.utilization, self.drafts, self.acceptance),
            *size_problems(self.block_size, self.batched_tokens, self.max_seqs, self.max_len),
            *within("max_graph", self.max_graph, 1, MAX_SEQS),
        ]


def common_problems(
    version: str, utilization: float, drafts: int | tuple[int, ...], acceptance: tuple[float, ...]
) -> list[Problem]:
    """Faults of the settings that an engine and a plan's `[engine]` table share."""
    faults: list[Problem] = []
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})+\S{0,40}", version):
        faults.append(Problem("version", f"found {version[:40]!r}", "such as 0.32.0"))
    if not 0 < utilization <= 1:
        faults.append(Problem("utilization", f"{utilization} is out of range", "above 0, up to 1"))
    for path, value in each("drafts", drafts):
        faults += within(path, value, 0, MAX_DRAFTS)
    if drafts == ():
        faults.append(Problem("drafts", "is an empty list", "such as [0, 3]"))
    for path, value in each("acceptance", acceptance):
        faults += within(path, value, 0, 1)
    if len(acceptance) > MAX_DRAFTS:
        faults.append(
            Problem("acceptance", f"has {len(acceptance)} entries", f"{MAX_DRAFTS} at most")
        )
    return faults


def size_problems(
    block_size: int | None, batched_tokens: int | None, max_seqs: int | None, max_len: int | None
) -> list[Problem]:
    """Faults of the sizes that an engine and a plan's `[engine]` table share."""
    return [
        *within("block_size", block_size, 1, MAX_BLOCK),
        *within("batched_tokens", batched_tokens, 1, MAX_BATCHED_TOKENS),
        *within("max_seqs", max_seqs, 1, MAX_SEQS),
        *within("max_len", max_len, 1, MAX_TOKENS),
    ]
