"""SGLang's defaults and memory rules.

Its pool is counted in tokens, not blocks, and a hybrid's states lie in a pool of their own; both
are priced here as one pool of equal bytes, which holds as many requests when the two pools are
split as the requests need them (assumed). `utilization` is `--mem-fraction-static`: the rest of
the memory free before loading stays for activations and CUDA graphs.
"""

from msgspec.structs import replace

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import GIB, Gpu
from splitpoint.inputs.model import Model
from splitpoint.pricing.engines.rules import Rules, Version, version_of

# sglang server_args.py, 0.5 line: (GPU memory below, chunked prefill size, largest graph batch of
# fewer than 4 GPUs, of 4 and more).
DEFAULTS = (
    (20 * GIB, 2048, 8, 8),
    (35 * GIB, 2048, 24, 80),
    (60 * GIB, 4096, 32, 160),
    (90 * GIB, 8192, 256, 512),
    (160 * GIB, 8192, 256, 512),
)
LARGEST = (16384, 512, 512)
# From 0.5.20 on of 20 to 35 GiB (arg_groups/memory_hook.py; 0.5.18 has the line above).
WIDER = Version(0, 5, 20)
MIDDLE = (4096, 48, 160)

PLAIN_SIZES = (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16))
DRAFTING_SIZES = (*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8))


def resolved(engine: Engine, gpu: Gpu | None, topology: Topology, model: Model) -> Engine:
    """The engine with every unset value as SGLang would choose it on this GPU."""
    return replace(
        limited(engine, 80 * GIB if gpu is None else gpu.hbm, topology),
        max_len=engine.max_len or model.max_len,
        block_size=engine.block_size or 1,
    )


def limited(engine: Engine, hbm: int, topology: Topology) -> Engine:
    """The engine with the limits of a step that SGLang takes on a GPU of `hbm` bytes."""
    chunk, few, many = next((d[1:] for d in DEFAULTS if hbm < d[0]), LARGEST)
    if 20 * GIB <= hbm < 35 * GIB and version_of(engine) >= WIDER:
        chunk, few, many = MIDDLE
    # Its tp counts the GPUs of all dp ranks.
    graph = few if topology.tp * topology.dp < 4 else many
    max_seqs = engine.max_seqs or graph
    return replace(
        engine,
        # --chunked-prefill-size counts the tokens of all dp ranks (server_args.py,
        # _handle_data_parallelism); `batched_tokens` those of one.
        batched_tokens=engine.batched_tokens or max(chunk // topology.dp, 1),
        max_seqs=max_seqs,
        max_graph=(engine.max_graph or min(graph, max_seqs)) if engine.graphs else None,
    )


def rules(engine: Engine, topology: Topology) -> Rules:
    """SGLang's memory rules for these settings."""
    return Rules(
        batches_in_flight=1,
        state_blocks=1,
        latent_grain=1,
        group_ratio=1.5,
        tokens_by_concurrency=False,
        budget="of free before load",
        charges_graphs=False,
        sampler_copies=3.5,
        draft_copies=4.1,
        pages_equal=False,
        # managers/scheduler.py event_loop_overlap, the default since 0.4 (December 2024).
        overlapped=engine.async_scheduling and topology.pp == 1,
    )


def capture_sizes(engine: Engine) -> tuple[int, ...]:
    """Batch sizes that graphs are captured for: SGLang's own lists (server_args.py of 0.5.6 to
    0.5.18, arg_groups/cuda_graph_hook.py of 0.5.23), and the largest."""
    if not engine.graphs or not engine.max_graph:
        return ()
    if engine.graph_sizes:
        return tuple(sorted({size for size in engine.graph_sizes if size <= engine.max_graph}))
    largest = engine.max_graph
    if not engine.graph_padding:
        return tuple(range(1, largest + 1))
    listed = [*PLAIN_SIZES, *range(512, largest + 1, 32)]
    if engine.drafts:
        listed = [*DRAFTING_SIZES, *range(272, largest + 1, 16)]
    return (*(size for size in listed if size < largest), largest)


def decode_sizes(engine: Engine) -> tuple[int, ...]:
    """Capture sizes of pure decode steps; SGLang captures no others."""
    return tuple(size * (1 + engine.drafts) for size in capture_sizes(engine))
