"""TensorRT-LLM's defaults and memory rules (PyTorch backend, 1.x).

`utilization` is `free_gpu_memory_fraction`: the share of what is free after loading and a trial
run that the KV cache takes. Blocks hold 32 tokens; each window size has a pool of its own, priced
here as one pool of equal bytes (assumed).
"""

from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Model
from splitpoint.pricing.engines.rules import Rules

# tensorrt_llm/llmapi/llm_args.py, 1.0: max_num_tokens, max_batch_size, tokens_per_block; the
# largest CUDA-graph batch follows max_batch_size up to 128.
TOKEN_BUDGET = 8192
MAX_SEQS = 2048
BLOCK_TOKENS = 32
LARGEST_GRAPH = 128


def resolved(engine: Engine, gpu: Gpu | None, topology: Topology, model: Model) -> Engine:
    """The engine with every unset value as TensorRT-LLM would choose it."""
    if topology.dcp > 1:
        what = "TensorRT-LLM shares no cache over its tensor-parallel ranks; its Helix adds ranks"
        raise PlanError("topology.dcp", f"is {topology.dcp}: {what}", "vllm, sglang, or dcp 1")
    max_seqs = engine.max_seqs or MAX_SEQS
    return replace(
        engine,
        batched_tokens=engine.batched_tokens or TOKEN_BUDGET,
        max_seqs=max_seqs,
        max_len=engine.max_len or model.max_len,
        block_size=engine.block_size or BLOCK_TOKENS,
        max_graph=(engine.max_graph or min(LARGEST_GRAPH, max_seqs)) if engine.graphs else None,
    )


def rules(engine: Engine, topology: Topology) -> Rules:
    """TensorRT-LLM's memory rules for these settings."""
    return Rules(
        batches_in_flight=1,
        state_blocks=1 + engine.drafts,
        latent_grain=1,
        group_ratio=1.5,
        tokens_by_concurrency=False,
        budget="of free after load",
        charges_graphs=False,
        sampler_copies=3.5,
        draft_copies=4.1,
        pages_equal=False,
        # llmapi/llm_args.py, 1.0: disable_overlap_scheduler is off by default.
        overlapped=engine.async_scheduling and topology.pp == 1,
    )


def capture_sizes(engine: Engine) -> tuple[int, ...]:
    """Batch sizes that graphs are captured for (llmapi/llm_args.py, 1.2,
    `_generate_cuda_graph_batch_sizes`): padded 1, 2, 4 and every 8th up to 128, unpadded 1 to 32,
    64 and 128; above, powers of two and the largest."""
    if not engine.graphs or not engine.max_graph:
        return ()
    largest = engine.max_graph
    own = (1, 2, 4, *range(8, 129, 8)) if engine.graph_padding else (*range(1, 33), 64, 128)
    doubled = (1 << power for power in range(8, largest.bit_length()))
    sizes = engine.graph_sizes or (*own, *doubled, largest)
    return tuple(sorted({size for size in sizes if size <= largest}))


def decode_sizes(engine: Engine) -> tuple[int, ...]:
    """Capture sizes of pure decode steps; no others are captured."""
    return tuple(size * (1 + engine.drafts) for size in capture_sizes(engine))
