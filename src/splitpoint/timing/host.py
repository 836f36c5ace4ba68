"""What the host adds to a step: the gap between steps, and launches that no graph replays.

A step is never shorter than the time in which the host can launch its kernels one by one, unless
a captured graph replays them; between two steps the scheduler works, in part beside the GPU.
"""

from functools import cache
from importlib import resources

import msgspec
import numpy as np

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.drafter import draft_layers
from splitpoint.inputs.engine import Engine, EngineName
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Dtype, Model
from splitpoint.pricing.engines import decode_sizes, prefill_sizes
from splitpoint.pricing.engines.rules import Version, version_of
from splitpoint.pricing.engines.vllm import SECOND_RUNNER, second_runner
from splitpoint.record import Record
from splitpoint.timing.operators import Array

# vLLM captured the pieces of a pass that drafts (pull request 25109).
DRAFTS_IN_PIECES = Version(0, 11)
# With asynchronous scheduling the hosts of dp ranks agree on a step's shape by gloo (pull request
# 29311; 0.11.2 has it not, 0.14.1 has); what drafts asks the step instead (pull request 54856).
SHAPES_BY_HOST, DRAFTS_REUSE_SHAPE = Version(0, 12), Version(0, 30)
# Seconds a token of context in which vLLM's first model runner looks for what the text before
# continues: 2.1 to 4.3 ns measured (CPU time of ngram_proposer.py of 0.32 on one core of an Intel
# Xeon, contexts of 2,000 to 128,000 random tokens of 50 and 32,000 kinds, 2026-11-30).
LOOKUP = 3e-9


class HostSpeed(Record, frozen=True, kw_only=True):
    """Host costs of one engine, seconds. `gap`: between steps when the next one is scheduled
    only after this one ends; `gap_async`: when it was scheduled meanwhile; `gap_sequence`: more
    per running sequence; `launch`: one kernel launched outside a graph; `front` and `front_token`:
    from a client to the queue, a request and each of its input tokens (HTTP, tokenising, the
    processes between, and the first token's way back); `hop`: more where prefill and decode are
    apart, from the end of the one until the other knows of the request, and `hop_across` more where
    a network is between them, not an NVLink domain. `beside_tokens`: the largest decode batch, in
    tokens, whose shared experts run beside the routed ones on a second stream. `agree` and
    `agree_far`: in which the hosts of dp ranks agree on the shape of a pass, of one machine and of
    several. `dependent`: of a kernel's start, what passes beside the end of the kernel before it
    (programmatic dependent launch). `fused`: kernels that are part of others on every rank, and
    `fused_sums`: those that are part of an all-reduce where one follows or precedes them.
    `quantises`: dtypes of products whose inputs a kernel of its own quantises and whose measured
    table leaves it out."""

    engine: EngineName
    gap: float
    gap_async: float
    gap_sequence: float
    gap_sequence_async: float
    launch: float
    front: float
    front_token: float
    hop: float
    hop_across: float
    beside_tokens: int
    agree: float = 0.0
    agree_far: float = 0.0
    dependent: float = 0.0
    fused: tuple[str, ...] = ()
    fused_sums: tuple[str, ...] = ()
    quantises: tuple[Dtype, ...] = ()
    origin: str
    front_origin: str
    hop_origin: str
    beside_origin: str
    agree_origin: str = ""
    fused_origin: str = ""
    quantises_origin: str = ""


class CpuSpeed(Record, frozen=True, kw_only=True):
    """A host's CPU: `launch` is how many times longer than an x86 server's one kernel takes it, and
    a step's preparation, which is many small ones."""

    cpu: str
    launch: float
    origin: str


class _Hosts(Record, frozen=True, kw_only=True):
    hosts: tuple[HostSpeed, ...]
    cpus: tuple[CpuSpeed, ...]


def host_speed(engine: Engine) -> HostSpeed:
    """The host costs of an engine."""
    return next(h for h in _all().hosts if h.engine == engine.name)


def cpu_speed(gpu: Gpu) -> CpuSpeed:
    """The speed of the CPU beside a GPU."""
    return next(c for c in _all().cpus if c.cpu == gpu.cpu)


def gap(engine: Engine, gpu: Gpu, sequences: Array) -> Array:
    """Seconds between two steps with this many running sequences."""
    speed = host_speed(engine)
    if engine.async_scheduling:
        return np.asarray(speed.gap_async + speed.gap_sequence_async * sequences)
    return preparation(engine, gpu, sequences)


def preparation(engine: Engine, gpu: Gpu, sequences: Array) -> Array:
    """Seconds in which the CPU beside a GPU schedules and prepares a step, beside the one before
    where it runs ahead."""
    speed = host_speed(engine)
    return np.asarray(cpu_speed(gpu).launch * (speed.gap + speed.gap_sequence * sequences))


def dependent(engine: Engine, gpu: Gpu) -> float:
    """Seconds of a kernel's start that pass beside the kernel before it; GPUs before Hopper have no
    programmatic dependent launch."""
    return 0.0 if gpu.architecture in ("ampere", "ada") else host_speed(engine).dependent


def fused(engine: Engine, topology: Topology) -> frozenset[str]:
    """Names of the operators that this engine runs inside of other kernels."""
    speed = host_speed(engine)
    sums = topology.tp > 1 and topology.dp == 1
    return frozenset(speed.fused + (speed.fused_sums if sums else ()))


def padded(engine: Engine, sequences: Array) -> Array:
    """Decoding sequences as a resolved engine runs them: padded up to the next captured size;
    past the largest (or without graphs or padding) as they are."""
    if not engine.graph_padding:
        return sequences
    sizes = np.array(decode_sizes(engine), dtype=np.float64) / (1 + engine.drafts)
    if not len(sizes):
        return sequences
    index = np.searchsorted(sizes, sequences)
    inside = index < len(sizes)
    return np.where(inside, sizes[np.minimum(index, len(sizes) - 1)], sequences)


def launch_seconds(engine: Engine, gpu: Gpu) -> float:
    """Seconds in which the CPU beside a GPU launches one kernel outside a graph."""
    return host_speed(engine).launch * cpu_speed(gpu).launch


def launch_floor(
    engine: Engine, gpu: Gpu, step_tokens: Array, kernels: float, *, decode: bool = False
) -> Array:
    """Seconds in which the host launches a step's kernels; 0 where a graph replays them.

    `decode`: of steps that only decode, for which every engine captures graphs of its own.
    """
    sizes = decode_sizes(engine) if decode else prefill_sizes(engine)
    largest = sizes[-1] if sizes else 0
    replayed = step_tokens <= largest
    if decode and not engine.graph_padding:
        replayed = np.isin(step_tokens, sizes)
    return np.where(replayed, 0.0, launch_seconds(engine, gpu) * kernels)


def draft_launches(
    engine: Engine, model: Model, *, kernels: int, attentions: int, passes: int
) -> int:
    """Launches by which the host drafts, in a step whose other kernels a graph replays.

    vLLM launched every kernel until it captured the pieces between attentions (pull request 25109,
    in 0.11); from then on a pass took one piece before every attention and one after the last, the
    attentions, logits and sampling (issue 45258, 2026-06-11), but every kernel still where only
    decode steps have graphs (initialize_cudagraph_keys in v1/spec_decode/llm_base_proposer.py of
    0.26 to 0.28). Its second model runner has captured all, as SGLang and TensorRT-LLM have.
    Without graphs the floor of the whole step counts the same kernels already.
    """
    if not engine.graphs or engine.name != "vllm" or second_runner(engine, model):
        return 0
    one_by_one = engine.graph_mode == "full_decode_only"
    if one_by_one or version_of(engine) < DRAFTS_IN_PIECES:
        return kernels
    return 2 * attentions + 3 * passes


def agreements(engine: Engine, model: Model) -> int:
    """How often the hosts of dp ranks agree on the shape of a pass in one decode step: before the
    step, and vLLM's first model runner before the first and the second pass that drafts
    (llm_base_proposer.py of 0.26), its second only before the second, and not since 0.30."""
    version = version_of(engine)
    if engine.name != "vllm" or not engine.async_scheduling or version < SHAPES_BY_HOST:
        return 0
    if not engine.drafts or not draft_layers(engine, model):
        return 1
    if second_runner(engine, model):
        return 1 + (engine.drafts > 1 and version < DRAFTS_REUSE_SHAPE)
    return 1 + min(engine.drafts, 2)


def agreement_seconds(engine: Engine, model: Model, gpu: Gpu, topology: Topology) -> float:
    """Seconds of a decode step in which the hosts of dp ranks wait for one another."""
    if topology.dp == 1:
        return 0.0
    speed = host_speed(engine)
    once = speed.agree if topology.gpus <= gpu.gpus_per_node else speed.agree_far
    return agreements(engine, model) * once


def lookup(engine: Engine) -> float:
    """Seconds a token of context in which the host looks for drafts in the text before, between two
    steps: one core in vLLM's first model runner, the GPU in its second; SGLang keeps a trie."""
    walks = engine.drafts > 0 and engine.draft_method == "ngram" and engine.name == "vllm"
    return LOOKUP if walks and version_of(engine) < SECOND_RUNNER[-1] else 0.0


@cache
def _all() -> _Hosts:
    file = resources.files("splitpoint") / "facts" / "efficiency" / "host.toml"
    return msgspec.toml.decode(file.read_bytes(), type=_Hosts)
