"""vLLM's defaults and memory rules by version.

Read from the sources of vLLM 0.11.2, 0.14.1, 0.17.1, 0.19.1, 0.20.2, 0.21.0, 0.22.1, 0.24.0,
0.26.0, 0.28.0 and 0.32.0: a rule's version is the first of these that has it.
"""

from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.drafter import method_of
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import GIB, Gpu
from splitpoint.inputs.model import Compressed, Experts, Latent, LinearState, Model
from splitpoint.pricing.engines.rules import Packing, Rules, Version, version_of

# vllm/engine/arg_utils.py get_batch_defaults: token budget and sequences of the API server.
LARGE_GPU = 160 * GIB
MIDDLE_GPU = 70 * GIB
# model_executor/models/config.py: from the first version with prefix caching on such models until
# before the second, the state behind every block is kept (mode "all"), in blocks that are multiples
# of the kernel's chunk; which models do it is a property of each model's code.
KEEPS_EVERY_STATE = (Version(0, 11), Version(0, 28))
EVERY_STATE_KINDS = ("mamba1", "mamba2", "short_conv")
# The second model runner is the default of models without experts and states from the first of
# these on, of all from the second on, where a smaller model or the text drafts from the third on
# (use_v2_model_runner in config/vllm.py of 0.24 to 0.30 and 0.32).
SECOND_RUNNER = (Version(0, 25), Version(0, 29), Version(0, 32))
# Tokens of the smallest block that kernels of its attention take, and any multiple is: V1's
# FlashAttention and Triton (get_supported_kernel_block_sizes, 0.32).
KERNEL_BLOCK = 16


def resolved(engine: Engine, gpu: Gpu | None, topology: Topology, model: Model) -> Engine:
    """The engine with every unset value as vLLM would choose it on this GPU.

    Without a GPU the choices are those of an 80 GB one.
    """
    version = version_of(engine)
    if engine.prefix_caching and KEEPS_EVERY_STATE[0] <= version < KEEPS_EVERY_STATE[1]:
        _refuse_every_state(engine, model)
    if engine.block_size and engine.block_size % KERNEL_BLOCK and version >= (0, 8):
        what = f"{engine.block_size}: no kernel of vLLM's attention takes it"
        raise PlanError("engine.block_size", what, f"a multiple of {KERNEL_BLOCK}")
    hbm = MIDDLE_GPU if gpu is None else gpu.hbm
    # A100s are exempt by name: larger budgets cost them throughput (vLLM pull request 17885).
    small = hbm < MIDDLE_GPU or (gpu is not None and "a100" in gpu.name.lower())
    small = small or version < (0, 8)
    longest = engine.max_len or model.max_len
    budget = engine.batched_tokens or _token_budget(hbm, small, longest, version)
    max_seqs = engine.max_seqs or min(256 if small else 1024, budget)
    blackwell = gpu is not None and gpu.architecture == "blackwell"
    # platforms/cuda.py: FlashMLA serves sparse fp8 there, FlashInfer with plain rows on Blackwell.
    packed = gpu is not None and gpu.architecture in ("hopper", "blackwell-rtx")
    ceiling = 1024 if blackwell and version >= (0, 28) else 512
    # max_concurrent_batches of config/vllm.py, 0.26: in a pipeline the first runner fills a batch
    # for each stage whatever it is told.
    ahead = engine.async_scheduling and (topology.pp == 1 or second_runner(engine, model))
    return replace(
        engine,
        async_scheduling=ahead,
        batched_tokens=budget,
        max_seqs=max_seqs,
        max_len=longest,
        block_size=engine.block_size or _block_size(model, blackwell, version),
        max_graph=_max_graph(engine, max_seqs, budget, ceiling, version),
        packed_latent=packed if engine.packed_latent is None else engine.packed_latent,
    )


def second_runner(engine: Engine, model: Model) -> bool:
    """Whether vLLM serves a model with its second model runner, unless told which to take."""
    version = version_of(engine)
    if engine.drafts and method_of(engine, model) in ("ngram", "draft_model"):
        return version >= SECOND_RUNNER[2]
    plain = not any(
        isinstance(layer.mixer, LinearState) or isinstance(layer.ffn, Experts)
        for layer in model.layers
    )
    return version >= SECOND_RUNNER[0 if plain else 1]


def rules(engine: Engine, topology: Topology) -> Rules:
    """vLLM's memory rules for this version and these settings."""
    version = version_of(engine)
    if version < (0, 26):
        batches = 1
    elif engine.async_scheduling:
        batches = topology.pp + 1
    else:
        batches = topology.pp
    # "align": beside the running state the last block boundary's is kept for the prefix cache.
    aligned = engine.prefix_caching and version >= (0, 17)
    return Rules(
        batches_in_flight=batches,
        state_blocks=(2 if aligned else 1) + engine.drafts,
        latent_grain=_latent_grain(version),
        group_ratio=_group_ratio(version),
        tokens_by_concurrency=version >= (0, 20),
        budget="of total",
        charges_graphs=version >= (0, 21),
        # topk_topp_sampler.py: sorted in PyTorch until a Triton kernel came.
        sampler_copies=3.5 if version >= (0, 17) else 9.5,
        draft_copies=4.1,
        block_is_grain=version >= (0, 20),
        packing=_packing(version),
        # The default since 0.14 (January 2026, pull request 27614; before, a flag of its own); in a
        # pipeline with the second model runner (pull request 42187), as its batches above.
        overlapped=engine.async_scheduling
        and version >= ((0, 14) if topology.pp == 1 else (0, 26)),
        # `prefix_cache_retention_interval` is 0 by default since 0.29 (pull request 52216); 0.27.1
        # and 0.28.0 have an environment variable for it that nobody sets, and keep every block of a
        # window and every state of a chunk's end, as before.
        tails=version >= (0, 29),
        # BlockPool.free_blocks; 0.22 put all at the end of the queue.
        nameless_first=version >= (0, 24),
        states=aligned,
    )


def capture_sizes(engine: Engine) -> tuple[int, ...]:
    """Batch sizes in tokens, ascending, that a resolved engine captures graphs for.

    1, 2, 4, multiples of 8 below 256, then of 16 (vllm/config/vllm.py _set_cudagraph_sizes).
    """
    if not engine.graphs or not engine.max_graph:
        return ()
    if engine.graph_sizes:
        return tuple(sorted({size for size in engine.graph_sizes if size <= engine.max_graph}))
    largest = engine.max_graph
    sizes = {size for size in (1, 2, 4) if size <= largest}
    sizes.update(range(8, min(largest + 1, 256), 8))
    sizes.update(range(256, largest + 1, 16))
    version = version_of(engine)
    if version >= (0, 20) and (engine.batched_tokens or largest + 1) <= largest:
        sizes.add(engine.batched_tokens or largest)
    if engine.max_seqs is not None and version >= (0, 32):
        query = engine.drafts + 1
        counts = {engine.max_seqs, 1, 2, 4, *range(8, 256, 8), *range(256, 1025, 16)}
        sizes.update(n * query for n in counts if n <= engine.max_seqs and n * query <= largest)
    return tuple(sorted(sizes))


def decode_sizes(engine: Engine) -> tuple[int, ...]:
    """Capture sizes of pure decode steps: whole sequences of 1 + drafts tokens each."""
    query = engine.drafts + 1
    widest = (engine.max_seqs or 0) * query
    rounded = {-(-size // query) * query for size in capture_sizes(engine)}
    largest = engine.max_graph or 0
    return tuple(sorted(size for size in rounded if size <= min(widest, largest)))


def _refuse_every_state(engine: Engine, model: Model) -> None:
    """Prefix caching that is not priced: a block table of states that grows with the context."""
    mixers = (layer.mixer for layer in model.layers)
    if any(isinstance(m, LinearState) and m.kind in EVERY_STATE_KINDS for m in mixers):
        raise PlanError(
            "engine.version",
            f"vLLM {engine.version} with prefix caching keeps the states of {model.name} behind "
            "every block, which is not priced",
            "turn prefix caching off, or take 0.28.0 or later",
        )


def _latent_grain(version: Version) -> int:
    if version >= (0, 28):
        return 128
    return 16 if version >= (0, 20) else 64


def _packing(version: Version) -> Packing:
    if version >= (0, 28):
        return "free" if version >= (0, 32) else "dense"
    return "slots" if version >= (0, 24) else "tuples"


def _group_ratio(version: Version) -> float:
    if version >= (0, 19):
        return 1.5
    return 1.25 if version >= (0, 14) else 1.0


def _token_budget(hbm: int, small: bool, longest: int, version: Version) -> int:
    if version < (0, 8):
        # V0 prefilled whole prompts (arg_utils.py, 0.6): chunks of 2,048 past 32k only.
        return 2048 if longest > 32768 else max(longest, 2048)
    if small:
        return 2048
    return 16384 if hbm >= LARGE_GPU and version >= (0, 28) else 8192


def _block_size(model: Model, blackwell: bool, version: Version) -> int:
    """The attention backend's preferred block: 16 where it takes 16.

    Sparse MLA kernels take 64, compressed attention 256. Dense MLA: FlashInfer's 32 on Blackwell;
    64 everywhere before 0.20 (assumed from FlashMLA, the backend preferred then).
    """
    mixers = [layer.mixer for layer in model.layers]
    if any(isinstance(mixer, Compressed) for mixer in mixers):
        return 256
    latent = [mixer for mixer in mixers if isinstance(mixer, Latent)]
    if any(mixer.indexer is not None for mixer in latent):
        return 64
    if latent and version < (0, 20):
        return 64
    return 32 if latent and blackwell else 16


def _max_graph(
    engine: Engine, max_seqs: int, budget: int, ceiling: int, version: Version
) -> int | None:
    if not engine.graphs:
        return None
    query = engine.drafts + 1 if version >= (0, 14) else 1
    asked = engine.max_graph or min(max_seqs * query * 2, ceiling)
    return min(asked, budget)
