"""Measured end-to-end rows of others, as records that say how each was served and loaded.

Two sources: `silicon_sample.csv` of aiconfigurator-core (NVIDIA, Apache-2.0), most of it taken from
InferenceX, and `inferencex_dsr1_configs.csv` (InferenceX, SemiAnalysis, Apache-2.0). Neither states
the server's settings; those are read from the scripts that InferenceX publishes
(github.com/SemiAnalysisAI/InferenceX, benchmarks/, read 2026-11-30).
"""

import csv
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec.structs import replace

from benchmarks.split_recipes import Recipe, Served, recipe
from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Deployment, Pool, Topology
from splitpoint.inputs.engine import Engine, EngineName, KvDtype
from splitpoint.inputs.huggingface import load_model
from splitpoint.inputs.model import Dtype, Model
from splitpoint.inputs.routing import Role, Routing
from splitpoint.record import Record
from splitpoint.timing.drafts import PRINTED

Statistic = Literal["mean", "median"]
Mode = Literal["agg", "PD"]
# Of the wheel's rows, those that its makers measured themselves are "own".
Source = Literal["inferencex", "aiconfigurator", "own"]

GPUS = {
    "b200_sxm": "B200",
    "b300_sxm": "B300",
    "gb200": "GB200",
    "gb300": "GB300",
    "h100_sxm": "H100 SXM",
    "h200_sxm": "H200",
    "b200": "B200",
    "b300": "B300",
    "h100": "H100 SXM",
    "h200": "H200",
    "mi300x": "MI300X",
    "mi325x": "MI325X",
    "mi355x": "MI355X",
}
QUANTS: dict[str, Dtype] = {
    "fp8": "fp8",
    "fp8_block": "fp8",
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "int4_wo": "int4",
    "bf16": "bf16",
}
ENGINES: dict[str, EngineName] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "trtllm": "trtllm",
    "trt": "trtllm",
    "dynamo-trt": "trtllm",
    "dynamo-sglang": "sglang",
    "mori-sglang": "sglang",
}
# Names in the table whose weights are another checkpoint's, stored as the row says.
ALIASES = {
    "zhipuai/GLM-5": "zai-org/GLM-5",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Llama-3.1-8B-Instruct",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-ai/DeepSeek-R1",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
}
# The checkpoints that InferenceX serves in fp4 (nvidia-master.yaml); of DeepSeek-R1 it is
# nvidia/DeepSeek-R1-0528-FP4-V2, which quantises what V3.1's does: experts, dense and shared
# products and the output projection, but no other attention weight.
NVFP4 = {
    "deepseek-ai/DeepSeek-R1": "nvidia/DeepSeek-V3.1-NVFP4",
    "deepseek-ai/DeepSeek-V3": "nvidia/DeepSeek-V3.1-NVFP4",
    "MiniMaxAI/MiniMax-M2.5": "nvidia/MiniMax-M2.5-NVFP4",
    "Qwen/Qwen3.5-397B-A17B": "nvidia/Qwen3.5-397B-A17B-NVFP4",
    "moonshotai/Kimi-K2.5": "nvidia/Kimi-K2.5-NVFP4",
}
# benchmark_serving.py draws both lengths evenly from 0.8 to 1.0 of the nominal.
INFERENCEX_SPREAD = 0.8
# Acceptance of each draft under InferenceX's prompts, random tokens behind the chat template
# (--use-chat-template in its scripts with MTP and in sa-bench): DeepSeek-R1's as published (see
# `drafts.PRINTED`; 3.55 tokens a step without the template). Assumed: Qwen3.5's are as often.
RANDOM_TEXT = PRINTED["deepseek-r1"].rates


class Hold(Record, frozen=True, kw_only=True):
    """Decode steps that a prompt may wait although there is room for it.

    `polls`: the server looks for new requests after every so many decode steps and after every
    prefill (SGLang `--scheduler-recv-interval`). `waits`: a prompt waits so many decode steps for
    others, until together they have `share` of the token budget (TensorRT-LLM
    `batch_wait_timeout_iters`, `batch_wait_max_tokens_ratio`).
    """

    polls: int = 1
    waits: int = 0
    share: float = 0.0


class Measured(Record, frozen=True, kw_only=True):
    """One row: `deployment` served `model` (weights stored as `quants`: dense, experts) on `gpu` to
    `concurrency` users who ask again at once; lengths even from `spread` to 1 of `isl` and `osl`.

    `hold`: how the server was told to gather prompts before it starts them. `ttft` and `tpot` are
    seconds, each the `statistic` over all requests of the run.
    """

    key: str
    source: Source
    model: str
    quants: tuple[str, str]
    gpu: str
    engine: EngineName
    mode: Mode
    deployment: Deployment
    concurrency: int
    isl: int
    osl: int
    spread: float
    hold: Hold
    drafts: int
    statistic: Statistic
    ttft: float
    tpot: float


class Refused(NamedTuple):
    """A row that cannot be priced, and why."""

    key: str
    why: str


def is_held_out(key: str) -> bool:
    """Rows with an odd CRC-32 are the test, run once a release."""
    return zlib.crc32(key.encode()) % 2 == 1


def wheel_rows(*, held_out: bool) -> Iterator[Measured | Refused]:
    """Rows of the wheel's `silicon_sample.csv` on one side of the split."""
    import aiconfigurator_core

    path = Path(aiconfigurator_core.__file__).parent / "systems" / "silicon_sample.csv"
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if is_held_out(row["id"]) == held_out:
                try:
                    yield _wheel_row(row)
                except PlanError as error:
                    yield Refused(row["id"], str(error))


def inferencex_rows(path: Path, *, held_out: bool) -> Iterator[Measured | Refused]:
    """Rows of the InferenceX DeepSeek-R1 table on one side of the split."""
    with path.open(newline="") as file:
        lines = (line for line in file if not line.startswith("#"))
        reader = csv.reader(lines)
        names = next(reader)
        for cells in reader:
            key = "|".join(cells[:17])
            if is_held_out(key) == held_out:
                try:
                    yield _inferencex_row(key, dict(zip(names, cells, strict=True)))
                except PlanError as error:
                    yield Refused(key, str(error))


def as_served(model: Model, quants: tuple[str, str]) -> Model:
    """A model whose checkpoint is stored otherwise, stored as the row says it was."""
    gemm, moe = (QUANTS[q] for q in quants)
    weights = model.weights
    if weights.experts == "bf16" and weights.mlp == "bf16":
        dense = gemm if gemm != "int4" else "bf16"
        weights = replace(
            weights, attention=dense, mlp=dense, state=dense, shared_experts=dense, experts=moe
        )
    elif weights.experts not in (moe, "mxfp4"):
        weights = replace(weights, experts=moe)
    return replace(model, weights=weights)


def model_of(row: Measured) -> Model:
    """The model of a row, from the catalogue or from the wheel's configurations."""
    if QUANTS[row.quants[1]] == "nvfp4" and row.model in NVFP4:
        return load_model(NVFP4[row.model], offline=True)
    name = ALIASES.get(row.model, row.model)
    try:
        model = load_model(name, offline=True)
    except PlanError:
        import aiconfigurator_core

        folder = Path(aiconfigurator_core.__file__).parent / "model_configs"
        model = load_model(str(folder / f"{name.replace('/', '--')}_config.json"))
    return as_served(model, row.quants)


class _Load(NamedTuple):
    """What the published scripts choose by: the model's short name, how many users, how long."""

    model: str
    gpu: str
    precision: str
    concurrency: int
    isl: int
    osl: int
    split: bool
    version: str = ""
    own: bool = False


def _wheel_row(row: dict[str, str]) -> Measured:
    engine = ENGINES[row["backend"]]
    said = re.search(r"concurrency=(\d+)", row["silicon_data_source"])
    disagg = row["mode"] == "disagg"
    # The table's own runs (their source is a local path) are loaded by genai-perf with fixed
    # lengths and 10 requests a user (aiconfigurator, eval/benchmarks/genai_perf_runner.py).
    own = "aic-auto-gap-analysis" in row["silicon_data_source"]
    concurrency = int(said.group(1)) if said else _batched(row, "decode_" if disagg else "")
    gemm = row["gemm_quant_mode"] or row["precision"] or "bf16"
    moe = row["moe_quant_mode"] or row["precision"] or "bf16"
    load = _Load(
        model=row["model_path"],
        gpu=GPUS[row["system"]],
        precision=row["precision"] or "bf16",
        concurrency=concurrency,
        isl=int(row["isl"]),
        osl=int(row["osl"]),
        split=disagg,
        version=row["backend_version"],
        own=own,
    )
    drafts = 0
    if disagg:
        deployment = _split(
            engine,
            load,
            (_instance(row, "prefill_"), _number(row["prefill_num_workers"])),
            (_instance(row, "decode_"), _number(row["decode_num_workers"])),
        )
    else:
        topology, replicas = _mixed_instance(row, concurrency, own=own)
        drafts = 0 if own else _drafted(engine, load, topology)
        settings = _own_settings(engine, load) if own else _settings(engine, load, topology)
        settings = _drafting(settings, load, drafts)
        deployment = Deployment(
            pools=(Pool(role="mixed", topology=topology, replicas=replicas, engine=settings),),
            routing="least_requests",
        )
    return Measured(
        key=row["id"],
        source="own" if own else "aiconfigurator",
        model=row["model_path"],
        quants=(gemm, moe),
        gpu=load.gpu,
        engine=engine,
        mode="PD" if disagg else "agg",
        deployment=deployment,
        concurrency=concurrency,
        isl=load.isl,
        osl=load.osl,
        spread=1.0 if own else INFERENCEX_SPREAD,
        hold=Hold() if own else _hold(engine, load, deployment.pools[-1].topology),
        drafts=drafts,
        # Where the same configuration is in both tables, this one has the mean.
        statistic="mean",
        ttft=float(row["silicon_ttft_ms"]) / 1e3,
        tpot=float(row["silicon_tpot_ms"]) / 1e3,
    )


def _number(cell: str) -> int:
    """An integer cell; 0 where it is empty."""
    return int(float(cell)) if cell else 0


def _batched(row: dict[str, str], side: str) -> int:
    """Users that fill the stated batches, which are those of one attention rank."""
    batch = _number(row[f"{side}batch_size"])
    if not batch:
        raise PlanError("silicon_data_source", "states no concurrency", "a row that does")
    ranks = max(_number(row[f"{side}attention_dp_size"]), 1)
    workers = _number(row["decode_num_workers"]) if side else 1
    return batch * ranks * max(workers, 1)


def _degrees(tp: int, dp: int, moe_tp: int, moe_ep: int) -> Topology:
    """A topology from the table's four degrees.

    Where experts lie on ranks of their own the table multiplies the GPU count by itself: tp4 with
    ep4 stands as 16 GPUs with experts 4 x 4 (or dp 16, or for vLLM tp4 dp4 ep16), though its name
    says 4 and the machine holds 8. The scripts of those vLLM rows know no data parallelism, and
    Kimi-K2.5 would not fit with it.
    """
    gpus = tp * dp
    if moe_tp == moe_ep > 1 and gpus == moe_tp * moe_ep:
        gpus, ep = moe_ep, moe_ep
        return Topology(tp=gpus, ep=ep) if dp == 1 else Topology(dp=gpus, ep=ep)
    if tp == dp > 1 and moe_ep == tp * dp:
        return Topology(tp=tp, ep=tp)
    return Topology(tp=tp, dp=dp, ep=gpus if moe_ep > 1 else 1)


def _instance(row: dict[str, str], side: str) -> Topology:
    return _degrees(
        *(
            max(_number(row[side + name]), 1)
            for name in ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
        )
    )


def _mixed_instance(row: dict[str, str], concurrency: int, *, own: bool) -> tuple[Topology, int]:
    """Topology and instances of an aggregated row. The table's own runs leave data parallelism
    out; there the users over the batch size are attention ranks of a mixture, else instances."""
    topology = _instance(row, "")
    moe = _number(row["moe_tp_size"]) * _number(row["moe_ep_size"])
    if not own:
        if topology.gpus > 8 and topology.ep == 1:
            raise PlanError(
                "tp_size",
                f"{topology.gpus} GPUs of several machines in one instance",
                "the GPUs of a split deployment added up; how it was split is not stated",
            )
        return topology, 1
    copies = max(1, round(concurrency / max(_number(row["batch_size"]), 1)))
    gpus = max(topology.tp, moe)
    if copies > 1 and moe > 1:
        return Topology(dp=gpus, ep=gpus if topology.ep > 1 else 1), 1
    return Topology(tp=gpus, ep=gpus if topology.ep > 1 else 1), copies


def _split(
    engine: EngineName,
    load: _Load,
    prefill: tuple[Topology, int],
    decode: tuple[Topology, int],
    *,
    drafts: int = 0,
) -> Deployment:
    if engine == "vllm" and not load.own and "Kimi" in load.model:
        # The table's rows do not say so: "dep4" and "dep16" of recipes/vllm/kimi-k2.5.
        prefill = (_apart(prefill[0]), prefill[1])
        if decode[0].gpus > 8:
            decode = (_apart(decode[0]), decode[1])
    if engine == "sglang" and load.gpu == "GB200":
        prefill, decode = _as_scripted(load, prefill, decode)
    ranks, workers = decode
    listed = None
    known = next((name for name in ("DeepSeek", "Kimi") if name in load.model), None)
    if engine == "trtllm" and known:
        listed = recipe(
            Served(
                model={"DeepSeek": "DeepSeek-R1", "Kimi": "Kimi-K2.5"}[known],
                gpu=load.gpu,
                precision={"nvfp4": "fp4"}.get(load.precision, load.precision),
                isl=load.isl,
                osl=load.osl,
                drafting=drafts > 0,
                prefills=prefill[1],
                decodes=workers,
                decode_gpus=ranks.gpus,
                wide=ranks.dp > 1,
                users=load.concurrency,
            )
        )
    drafts = listed.drafts if listed else drafts

    def pool(role: Role, topology: Topology, replicas: int) -> Pool:
        if not replicas:
            raise PlanError(f"{role}_num_workers", "is not stated", "a row that states it")
        settings = _split_settings(engine, load, topology, role, listed)
        if drafts and load.gpu.startswith("MI"):
            # Spec v2 is in none of the flags of models.yaml, see `_drafting`.
            settings = replace(settings, async_scheduling=False)
        return Pool(
            role=role,
            topology=topology,
            replicas=replicas,
            engine=replace(settings, drafts=drafts, acceptance=RANDOM_TEXT[:drafts]),
        )

    # Dynamo deals requests out in turn (its frontend's default); of the routers before AMD's
    # servers nothing is stated.
    routing: Routing = "least_requests" if load.gpu.startswith("MI") else "round_robin"
    return Deployment(
        pools=(pool("prefill", *prefill), pool("decode", *decode)),
        routing=routing,
        decode_routing=routing,
    )


def _apart(ranks: Topology) -> Topology:
    """As many GPUs, attention of each a rank of its own."""
    return Topology(tp=1, dp=ranks.gpus, ep=ranks.gpus)


def _as_scripted(
    load: _Load, prefill: tuple[Topology, int], decode: tuple[Topology, int]
) -> tuple[tuple[Topology, int], tuple[Topology, int]]:
    """Both sides of GB200's SGLang where a row states attention of ranks without experts of ranks.

    Such rows' degrees "do nothing because they are hardcoded" (nvidia-master.yaml of 2025-12;
    InferenceX issue 485 and PR 486 change what later rows state): the scripts gb200-fp{4,8}/disagg
    of Dynamo's slurm_jobs, and recipes/gb200-fp{4,8} of srt-slurm after them, have tensor parallel
    servers of 4 GPUs in *-low-latency and experts on the ranks in all others, but fp4's prefill of
    8,192 tokens tensor parallel too.
    """
    if all(ranks.dp == 1 or ranks.ep > 1 for ranks, _ in (prefill, decode)):
        return prefill, decode
    low_latency = decode[0].gpus <= 4
    whole = low_latency or (load.precision != "fp8" and load.isl == 8192)

    def side(given: tuple[Topology, int], whole: bool) -> tuple[Topology, int]:
        ranks, workers = given
        return (Topology(tp=ranks.gpus) if whole else _apart(ranks)), workers

    return side(prefill, whole), side(decode, low_latency)


def _balance(load: _Load) -> int:
    """timeout_iters of attention_dp_config, in all scripts for TensorRT-LLM with DP_ATTENTION;
    gptoss_fp4_*_trt.sh leave it at the default (llm_args.py)."""
    return 50 if "gpt-oss" in load.model else 60


def _split_settings(
    engine: EngineName, load: _Load, topology: Topology, role: Role, listed: Recipe | None
) -> Engine:
    """The settings of one side of a split deployment, from the recipes of srt-slurm and, for AMD's
    GPUs, from benchmarks/multi_node/amd_utils/models.yaml."""
    settings = _settings(engine, load, topology)
    if load.own:
        return settings
    if engine == "vllm" and role == "prefill":
        return replace(settings, batched_tokens=16384)
    if engine == "vllm" and "Kimi" in load.model and load.isl == 8192 and topology.dp == 1:
        # disagg-gb200-1p4d-dep4-tep4.yaml
        return replace(settings, max_seqs=16, max_graph=16)
    if engine == "trtllm" and role == "prefill":
        budget, seqs = _trtllm_prefill(load)
        # disable_overlap_scheduler, in all of them.
        return replace(settings, batched_tokens=budget, max_seqs=seqs, async_scheduling=False)
    if listed is not None:
        return replace(settings, max_seqs=listed.batch, max_graph=listed.batch)
    if engine == "sglang":
        settings = replace(settings, all_to_all=_sends(load, topology))
        if role == "prefill":
            settings = replace(settings, batched_tokens=_sglang_prefill(load, topology))
            return replace(settings, max_seqs=1) if _one_by_one(load, topology) else settings
    return settings


def _sends(load: _Load, topology: Topology) -> bool:
    """Whether SGLang sends tokens one by one: `--moe-a2a-backend` deepep in recipes/gb{2,3}00-fp8
    and on the wide decode sides of gb{2,3}00-fp4, mori in models.yaml; none elsewhere."""
    if load.gpu.startswith("MI"):
        return True
    return load.gpu in ("GB200", "GB300") and (load.precision == "fp8" or topology.dp > 8)


def _one_by_one(load: _Load, topology: Topology) -> bool:
    """Whether each of 8 ranks prefills one prompt at a time: --max-running-requests 8 and
    --chunked-prefill-size 65536 of recipes/b200-fp8/8k1k_*.yaml."""
    return load.gpu == "B200" and load.precision == "fp8" and topology.dp > 1 and topology.ep == 1


def _trtllm_prefill(load: _Load) -> tuple[int, int]:
    """max_num_tokens and max_batch_size of a rank (recipes/trtllm/*/ctx*.yaml; GB200's and the fp8
    ones of GB300 are assumed to be like those that were read)."""
    if load.gpu == "H100 SXM":
        return 2048, 2
    fp8 = load.precision == "fp8"
    if load.gpu == "B300" and fp8:
        return 8320, 8
    if load.isl == 1024:
        return {"H200": (8192, 8), "B300": (10240, 8)}.get(load.gpu, (16384, 16))
    if fp8 and load.gpu != "H200":
        return (8320, 1) if load.gpu == "B200" else (8232, 2)
    return 2 * load.isl + 256, 2


def _sglang_prefill(load: _Load, topology: Topology) -> int:
    """Tokens of a rank's prefill step: --chunked-prefill-size over the dp ranks, at most
    --max-prefill-tokens, 16384 where it is not set."""
    if load.gpu.startswith("MI"):
        chunk = 16384 if load.precision == "fp4" else 262144
    elif load.gpu in ("GB200", "GB300"):
        # low-latency.yaml have few users, the others of these names attention of dp ranks or of
        # several workers; of 1k1k, max-tpt.yaml in fp4 have 65536.
        if load.concurrency <= 64:
            chunk = 8192 if load.isl == 1024 else 32768 if load.precision == "fp8" else 24576
        else:
            chunk = 65536 if load.isl == 1024 and load.precision != "fp8" else 131072
    elif _one_by_one(load, topology):
        chunk = 65536
    else:
        chunk = {"H100 SXM": 2048, "H200": 32768}.get(load.gpu, 32768)
    return max(chunk // topology.dp, 1)


def _own_settings(engine: EngineName, load: _Load) -> Engine:
    """The settings that the table's own tool generates for an aggregated server (aiconfigurator,
    generator/: templates and rules of the row's engine version).

    TensorRT-LLM 1.0.0rc3 (backends/trtllm.py with extra_engine_args.1.0.0rc3.yaml.j2): no overlap
    scheduler, graphs of powers of two without padding; later versions (rule_plugin/trtllm.rule)
    have both. vLLM 0.12 gets no token budget and schedules step by step.
    """
    seqs = max(512, load.concurrency)
    engine_ = replace(_defaults(engine, load), max_seqs=seqs)
    if engine == "vllm":
        return replace(engine_, **_released(load))
    if engine == "sglang":
        return engine_
    engine_ = replace(engine_, kv_dtype="fp8" if load.precision in ("fp8", "fp4") else "auto")
    if load.version.startswith("1.0."):
        return replace(
            engine_,
            batched_tokens=load.concurrency + load.isl + 1500,
            async_scheduling=False,
            graph_padding=False,
            graph_sizes=tuple(1 << power for power in range(9)),
        )
    return replace(
        engine_,
        batched_tokens=seqs + load.isl + 1500,
        graph_sizes=(
            *range(1, 17),
            *range(20, 33, 4),
            *range(40, 65, 8),
            *range(80, 129, 16),
            *range(160, 257, 32),
            *range(320, 513, 64),
        ),
    )


def _released(load: _Load) -> dict[str, object]:
    """vLLM's version where the row names a release; asynchronous scheduling is the default since
    0.14 (pull request 27614)."""
    release = re.match(r"0\.(\d+)\.\d+$", load.version)
    if release is None:
        return {}
    return {"version": load.version, "async_scheduling": int(release[1]) >= 14}


def _defaults(engine: EngineName, load: _Load) -> Engine:
    # Every row of vLLM is older than its sums by FlashInfer (0.29).
    settings = Engine(
        name=engine,
        prefix_caching=False,
        max_len=load.isl + load.osl + 64,
        flashinfer_sums=False,
    )
    if engine != "sglang":
        return settings
    # Of the nightly images only those of April 2026 are later than 0.5.9. InferenceX ran MI300X and
    # MI325X on images up to 0.5.9 until April 2026 (its pull requests 544 and 811); its table of
    # DeepSeek-R1 names none: taken to be the last.
    old = load.version.startswith("nightly") and "202604" not in load.version
    old |= load.gpu in ("MI300X", "MI325X") and not load.version
    release = re.match(r"\d+\.\d+\.\d+", "0.5.9" if old else load.version)
    return replace(settings, version=release[0]) if release else settings


def _settings(engine: EngineName, load: _Load, topology: Topology) -> Engine:
    """The server's settings as InferenceX's scripts set them for this model and load."""
    ranked = -(-load.concurrency // topology.dp)
    if engine == "sglang":
        chosen = _sglang(load, topology)
    elif engine == "trtllm":
        chosen = _trtllm(load)
    else:
        chosen = _vllm(load)
    return replace(
        _defaults(engine, load),
        kv_dtype=chosen.kv_dtype,
        utilization=chosen.utilization,
        batched_tokens=chosen.batched_tokens,
        max_seqs=max(chosen.max_seqs or ranked, 1),
        max_graph=chosen.max_graph,
        state_dtype="bf16" if engine == "sglang" and _later(load) else "auto",
        balance_steps=_balance(load) if engine == "trtllm" and topology.dp > 1 else 0,
        # trtllm_mla, trtllm_mha and nsa page by 64 tokens, and where SGLang pages by 1 it moves
        # neighbouring pages as one piece.
        block_size=64 if engine == "sglang" else None,
    )


# Where InferenceX ran DeepSeek-R1 with drafts only, of the TensorRT-LLM image that it ran both
# ways (1.1.0rc2.post2, nvidia-master.yaml of December 2025): tp, dp, ep, users from and to.
DRAFTED: dict[tuple[str, str, int, int], tuple[tuple[int, int, int, int, int], ...]] = {
    ("B200", "fp4", 1024, 1024): ((4, 1, 4, 16, 32), (1, 4, 4, 128, 128), (1, 8, 8, 64, 128)),
    ("B200", "fp4", 1024, 8192): (
        (4, 1, 4, 32, 32),
        (1, 4, 4, 128, 128),
        (8, 1, 8, 8, 16),
        (1, 8, 8, 128, 128),
    ),
    ("B200", "fp4", 8192, 1024): ((4, 1, 1, 4, 16), (1, 4, 4, 32, 32), (1, 8, 8, 32, 32)),
    ("B200", "fp8", 1024, 1024): ((1, 8, 8, 128, 256),),
    ("H200", "fp8", 1024, 1024): ((1, 8, 8, 128, 256),),
    ("H200", "fp8", 1024, 8192): ((8, 1, 8, 128, 128), (1, 8, 8, 256, 256)),
    ("H200", "fp8", 8192, 1024): ((1, 8, 8, 128, 256),),
}


def _drafted(engine: EngineName, load: _Load, topology: Topology) -> int:
    """Drafts of an aggregated row, which the wheel's table does not state.

    InferenceX serves DeepSeek-R1 on TensorRT-LLM from image 1.2.0rc6.post3 with MTP and from
    .post2 without (nvidia-master.yaml, early 2026); 1.1.0rc2.post2 ran both, at loads that
    overlap: only those that the list without MTP lacks are known to draft. MTP is 3 tokens, 1
    with data-parallel attention (the same file). Qwen3.5 in FP8 ran on SGLang 0.5.9 and B200 over
    TP4 EP4 and TP8 without MTP, and over TP4 EP1 only with it (its pull requests 804 and 897);
    assumed: on B300 too.
    """
    if engine == "sglang" and "Qwen3.5" in load.model:
        ran = (load.version, load.precision, topology.tp, topology.dp, topology.ep)
        return 3 if ran == ("0.5.9", "fp8", 4, 1, 1) and load.gpu in ("B200", "B300") else 0
    if engine != "trtllm" or "DeepSeek" not in load.model:
        return 0
    drafts = 1 if topology.dp > 1 else 3
    if load.version == "1.2.0rc6.post3":
        return drafts
    ranges = DRAFTED.get((load.gpu, load.precision, load.isl, load.osl), ())
    shape = (topology.tp, topology.dp, topology.ep)
    only = any(r[:3] == shape and r[3] <= load.concurrency <= r[4] for r in ranges)
    return drafts if load.version == "1.1.0rc2.post2" and only else 0


def _two_steps(engine: EngineName, load: _Load) -> bool:
    """dsr1_fp{4,8}_b200_mtp.sh and dsr1_fp8_b300_mtp.sh; AMD's leave SGLang its default of 3."""
    return engine == "sglang" and load.gpu in ("B200", "B300")


def _drafting(settings: Engine, load: _Load, drafts: int) -> Engine:
    """An aggregated server's settings with drafts: dsr1_*_mtp.sh, dsr1_*_trt_mtp.sh and
    qwen3.5_fp8_b200_mtp.sh.

    SGLang before 0.5.11 schedules step by step with drafts unless SGLANG_ENABLE_SPEC_V2 is set
    (server_args.py of 0.5.6, 0.5.9, 0.5.10); these scripts set it, but do not export it.
    """
    if not drafts:
        return settings
    settings = replace(settings, drafts=drafts, acceptance=RANDOM_TEXT[:drafts])
    if settings.name == "trtllm":
        seqs = settings.max_seqs or load.concurrency
        budget = -(-((1 + drafts) * seqs + load.isl + 64) // 64) * 64
        graph = {"H200": 128}.get(load.gpu, 256 if load.precision == "fp8" else 512)
        return replace(settings, batched_tokens=budget, max_graph=graph)
    settings = replace(settings, async_scheduling=False)
    if "Qwen3.5" in load.model:
        users = load.concurrency
        return replace(
            settings, utilization=0.8, state_dtype="bf16", max_seqs=users, max_graph=users
        )
    if load.gpu.startswith("MI"):
        seqs = 4 * load.concurrency
        return replace(settings, batched_tokens=196608, max_seqs=seqs, max_graph=seqs)
    if load.gpu in ("B200", "B300"):
        return replace(settings, batched_tokens=16384, max_seqs=512, max_graph=512)
    return settings


def _hold(engine: EngineName, load: _Load, topology: Topology) -> Hold:
    """dsr1_fp{4,8}_b200.sh and qwen3.5_*_b{2,3}00.sh poll rarely; 70b_*_trt_slurm.sh and
    dsr1_fp8_b200_trt.sh wait for a batch. Split, a prefill starts once its decode side has looked
    for the request: the decode sides of low-latency.yaml in recipes/gb200-* and gb300-fp4 poll."""
    if load.split:
        few = engine == "sglang" and load.gpu in ("GB200", "GB300") and load.concurrency <= 64
        return Hold(polls=10) if few and (load.gpu, load.precision) != ("GB300", "fp8") else Hold()
    short = load.isl == load.osl == 1024
    if engine == "sglang" and load.gpu in ("B200", "B300") and "GLM" not in load.model:
        return Hold(polls=30 if load.concurrency >= 16 and not _later(load) else 10)
    if engine == "trtllm" and short and "Llama" in load.model and topology.tp < 8:
        return Hold(waits=20, share=0.9)
    if (engine, load.gpu, load.precision) == ("trtllm", "B200", "fp8") and short:
        return Hold(waits=40, share=0.8) if load.concurrency >= 64 else Hold()
    return Hold()


class _Settings(NamedTuple):
    """`max_seqs` None: as many as there are users."""

    kv_dtype: KvDtype
    utilization: float
    batched_tokens: int | None
    max_seqs: int | None = None
    max_graph: int | None = None


def _later(load: _Load) -> bool:
    """Whether qwen3.5_fp8_b300.sh served a row; those of SGLang 0.5.9 are taken for the B200's."""
    return "Qwen3.5" in load.model and load.gpu == "B300" and load.version != "0.5.9"


def _sglang(load: _Load, topology: Topology) -> _Settings:
    """dsr1_fp8_{b200,h200}.sh, dsr1_fp4_b200.sh, glm5_fp8_b200.sh, qwen3.5_*_b{2,3}00.sh."""
    if load.split and load.gpu.startswith("G"):
        # recipes of GB200 and GB300 in the same repository: --mem-fraction-static 0.95.
        return _Settings("fp8", 0.95, 24576)
    if "GLM" in load.model:
        return _Settings("fp8", 0.85, 32768)
    if "Qwen3.5" in load.model:
        kv: KvDtype = "auto" if load.precision == "bf16" else "fp8"
        if _later(load):
            return _Settings(kv, 0.8, 16384, None, load.concurrency)
        return _Settings(kv, 0.82, 32768, 128)
    if load.gpu == "H200":
        seqs = 512 if load.isl == load.osl == 1024 else 256
        return _Settings("auto", 0.82, 32768, seqs, seqs)
    if load.precision == "fp4":
        return _Settings("fp8", 0.85, 16384, 256, 256)
    if topology.tp == 4:
        return _Settings("fp8", 0.95, 8192, 32, 32)
    return _Settings("fp8", 0.82, 32768, 128, 128)


def _trtllm(load: _Load) -> _Settings:
    """dsr1_{fp4,fp8}_b200_trt.sh, dsr1_fp8_h200_trt_slurm.sh, gptoss_fp4_{b200,h200}_trt.sh,
    70b_fp8_b200_trt_slurm.sh."""
    least = -(-(load.concurrency + load.isl + 64) // 64) * 64
    if "gpt-oss" in load.model:
        kv: KvDtype = "auto" if load.gpu == "H200" else "fp8"
        return _Settings(kv, 0.85, 20000, None, load.concurrency)
    if "Llama" in load.model:
        return _Settings("fp8", 0.9, 16384, None, 1024)
    if load.gpu == "H200":
        return _Settings("fp8", 0.75, least, None, 128)
    return _Settings("fp8", 0.8, max(least, 8192), None, load.concurrency)


def _vllm(load: _Load) -> _Settings:
    """minimaxm2.5_fp8_{b200,h200,h100}.sh, kimik2.5_{fp4,int4}_b200.sh, gptoss_fp4_{b200,h200}.sh,
    70b_*_slurm.sh (their budget is assumed to be gpt-oss's)."""
    new = load.gpu in ("B200", "B300", "GB200", "GB300")
    if "MiniMax" in load.model:
        if new:
            return _Settings("fp8", 0.9, 2 * load.isl, 1024, 2048)
        return _Settings("auto", 0.95 if load.gpu == "H200" else 0.9, 8192, 256, 512)
    if "Kimi" in load.model:
        if load.precision == "fp4":
            return _Settings("fp8", 0.9, 2 * load.isl, None, 2048)
        return _Settings("auto", 0.95, 8192, None, 512)
    return _Settings("fp8" if new else "auto", 0.9, 8192, 512 if new else None, 2048)


def _inferencex_row(key: str, row: dict[str, str]) -> Measured:
    if row["framework"] not in ENGINES:
        raise PlanError("framework", f"{row['framework']} is not known", ", ".join(ENGINES))
    engine = ENGINES[row["framework"]]
    precision = row["precision"]
    load = _Load(
        model="deepseek-ai/DeepSeek-R1",
        gpu=GPUS[row["hardware"]],
        precision=precision,
        concurrency=int(row["conc"]),
        isl=int(row["isl"]),
        osl=int(row["osl"]),
        split=row["disagg"] == "True",
    )
    disagg = row["disagg"] == "True"
    # EAGLE with 3 steps and one branch, or num_nextn_predict_layers 3 (assumed where no recipe
    # says otherwise); on TensorRT-LLM 1 with data-parallel attention (nvidia-master.yaml); SGLang's
    # recipes of split deployments take 2 steps, and have its overlapped schedule (spec v2).
    single = engine == "trtllm" and not disagg and row["decode_dp_attention"] == "True"
    double = row["framework"] == "dynamo-sglang" if disagg else _two_steps(engine, load)
    steps = 1 if single else 2 if double else 3
    drafts = steps if row["spec_method"] == "mtp" else 0

    workers = {name: int(row[f"{name}_num_workers"]) for name in ("prefill", "decode")}
    stated = {
        name: max(int(row[f"{name}_tp"]), int(row[f"{name}_ep"])) for name in ("prefill", "decode")
    }
    if disagg and sum(workers[name] * stated[name] for name in workers) != int(row["gpus"]):
        # Some rows state 1 for both degrees; equal workers are all that the total can tell.
        each, rest = divmod(int(row["gpus"]), sum(workers.values()))
        if set(stated.values()) != {1} or rest or each & (each - 1):
            raise PlanError("gpus", "do not add up from the degrees", "workers x degrees")
        stated = dict.fromkeys(stated, each)

    def side(name: str) -> tuple[Topology, int]:
        ep = int(row[f"{name}_ep"])
        gpus = stated[name]
        wide = row[f"{name}_dp_attention"] == "True"
        experts = gpus if ep > 1 else 1
        topology = Topology(dp=gpus, ep=experts) if wide else Topology(tp=gpus, ep=experts)
        return topology, workers[name]

    if disagg:
        deployment = _split(engine, load, side("prefill"), side("decode"), drafts=drafts)
    else:
        topology, _ = side("decode")
        settings = _drafting(_settings(engine, load, topology), load, drafts)
        deployment = Deployment(
            pools=(Pool(role="mixed", topology=topology, replicas=1, engine=settings),),
            routing="least_requests",
        )
    return Measured(
        key=key,
        source="inferencex",
        model=load.model,
        quants=(precision, precision),
        gpu=load.gpu,
        engine=engine,
        mode="PD" if disagg else "agg",
        deployment=deployment,
        concurrency=load.concurrency,
        isl=load.isl,
        osl=load.osl,
        spread=INFERENCEX_SPREAD,
        hold=_hold(engine, load, deployment.pools[-1].topology),
        drafts=deployment.pools[-1].engine.drafts,
        statistic="median",
        ttft=float(row["ttft"]),
        tpot=float(row["tpot"]),
    )
