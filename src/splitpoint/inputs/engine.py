"""The serving engine and its settings. None means: what the engine would choose by itself."""

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from splitpoint.inputs.gpu import LinkBandwidth
from splitpoint.inputs.model import Dtype
from splitpoint.record import Record

EngineName = Literal["vllm", "sglang", "trtllm"]
KvDtype = Literal["auto"] | Dtype
DraftMethod = Literal["mtp", "eagle3", "ngram", "draft_model"]
SchedulePolicy = Literal["fcfs", "lpm"]
Kernels = Literal["fitted", "measured"]
GraphMode = Literal["full_and_piecewise", "full_decode_only", "piecewise"]

# Assumed bounds, past any engine in use; step curves hold one entry per sequence and per token
# of the budget, so they also bound memory. 2^24 tokens clears the 10M context of Llama 4 Scout.
MAX_DRAFTS = 16
MAX_BLOCK = 2**17
MAX_BATCHED_TOKENS = 2**20
MAX_SEQS = 2**16
MAX_TOKENS = 2**24

Version = Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)+\S*$", description="such as 0.32.0")]
Utilization = Annotated[float, Meta(gt=0, le=1)]
BlockSize = Annotated[int, Meta(ge=1, le=MAX_BLOCK)]
BatchedTokens = Annotated[int, Meta(ge=1, le=MAX_BATCHED_TOKENS)]
Sequences = Annotated[int, Meta(ge=1, le=MAX_SEQS)]
Tokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
Steps = Annotated[int, Meta(ge=0, le=2**16)]
Drafts = Annotated[int, Meta(ge=0, le=MAX_DRAFTS)]
HostGib = Annotated[float, Meta(ge=0, le=2**20)]
Share = Annotated[float, Meta(ge=0, le=1)]
DraftModel = Annotated[
    str, Meta(pattern=r"\S", description="a catalogue name, a config.json, a folder or a hub id")
]
CurveFile = Annotated[str, Meta(min_length=1, description="a file that `splitpoint fit` wrote")]
GraphSizes = Annotated[tuple[Sequences, ...], Meta(max_length=512)]
Acceptance = Annotated[tuple[Share, ...], Meta(max_length=MAX_DRAFTS)]


# The version whose rules an engine is taken to follow where none is stated: the last that was read.
USUAL_VERSIONS: dict[EngineName, str] = {"vllm": "0.32.0", "sglang": "0.5.23", "trtllm": "1.2.0"}


def usual_utilization(name: EngineName, version: str) -> float:
    """The share of memory that an engine takes when none is given: vLLM's gpu_memory_utilization
    (0.92 from 0.20 on), SGLang's mem_fraction_static, which varies by GPU and tp around this
    (assumed), TensorRT-LLM's free_gpu_memory_fraction (published, 1.0)."""
    if name != "vllm":
        return {"sglang": 0.88, "trtllm": 0.9}[name]
    release = re.match(r"v?0\.(\d+)", version)
    return 0.9 if release and int(release[1]) < 20 else 0.92


def fill_usual(made: Struct, name: EngineName, version: str, utilization: float) -> None:
    """Give a record of an engine's settings that is being made what it usually takes where it
    has no version or share of memory."""
    known = version or USUAL_VERSIONS[name]
    force_setattr(made, "version", known)
    force_setattr(made, "utilization", utilization or usual_utilization(name, known))


class Engine(Record, frozen=True, kw_only=True):
    """Settings of one engine process, shared by all its ranks.

    `version`, `utilization`: without one the engine's usual (above).
    `draft_method`: the model's own draft layers, an EAGLE-3 head, a smaller model, or the text
    before; None: what the model has. `draft_model`: the head or the smaller model.
    `graph_sizes`: batch sizes that graphs are captured for, instead of the engine's own choice
    (vLLM counts tokens, the others sequences). `graph_padding`: a batch between two sizes runs as
    the next larger one; off: without a graph (TensorRT-LLM's `enable_padding`, off by default
    there, on in every guide; the other engines always pad).
    `balance_steps`: steps that prompts wait at most until every data-parallel rank has one
    (TensorRT-LLM's `attention_dp_config`, `timeout_iters` with `enable_balance`); 0: off, as there.
    `all_to_all`: tokens of data-parallel ranks are sent to their experts one by one (SGLang's
    `--moe-a2a-backend`, vLLM's `--all2all-backend`) or gathered on all ranks; None: as assumed in
    `timing.operators.exchanged`.
    `flashinfer_sums`: vLLM's all-reduces are FlashInfer's (`VLLM_ALLREDUCE_USE_FLASHINFER`); None:
    from 0.29 on, as there.
    `schedule_policy`: the order of SGLang's waiting queue (`--schedule-policy`), by arrival or
    longest cached prefix first. `mixed_chunk`: SGLang's decodes join the steps that prefill
    (`--enable-mixed-chunk`); as there, not with drafts.
    `curve`: a file of step times fitted to measurements (`splitpoint fit`), for the predicted ones.
    `kernels`: step times from surfaces fitted to measured kernels, or from the measured rows
    themselves where there are any (the `aic` extra; `timing.measured_kernels`).
    `packed_latent`: fp8 latent vectors of sparse attention lie in FlashMLA's rows, which keep the
    rope part in 16 bit and carry scales. `host_kv_gib`: host memory, GiB of one data-parallel rank
    over all its GPUs, that keeps copies of KV blocks; 0: none. `host_bandwidth`: bytes per second
    at which one GPU gets them back; published for an H100 on PCIe 5 x16 and blocks of 2 MB, one
    direction (blog.vllm.ai, 2026-01-08), assumed for any other.
    """

    name: EngineName = "vllm"
    version: Version = ""
    utilization: Utilization = 0.0
    kv_dtype: KvDtype = "auto"
    state_dtype: KvDtype = "auto"
    block_size: BlockSize | None = None
    batched_tokens: BatchedTokens | None = None
    max_seqs: Sequences | None = None
    max_len: Tokens | None = None
    prefix_caching: bool = True
    async_scheduling: bool = True
    graphs: bool = True
    max_graph: Sequences | None = None
    graph_sizes: GraphSizes = ()
    graph_padding: bool = True
    balance_steps: Steps = 0
    all_to_all: bool | None = None
    flashinfer_sums: bool | None = None
    schedule_policy: SchedulePolicy = "fcfs"
    mixed_chunk: bool = False
    graph_mode: GraphMode = "full_and_piecewise"
    drafts: Drafts = 0
    acceptance: Acceptance = ()
    draft_method: DraftMethod | None = None
    draft_model: DraftModel | None = None
    packed_latent: bool | None = None
    curve: CurveFile | None = None
    kernels: Kernels = "fitted"
    host_kv_gib: HostGib = 0.0
    host_bandwidth: LinkBandwidth = 50e9

    def __post_init__(self) -> None:
        fill_usual(self, self.name, self.version, self.utilization)
