"""Where a model runs: topology of an instance, pools of equal instances, and their routing."""

import math
from typing import Annotated

from msgspec import Meta

from splitpoint.inputs.checks import Problem
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import LinkBandwidth
from splitpoint.inputs.model import (
    Attention,
    Compressed,
    Dtype,
    Experts,
    Ffn,
    LinearState,
    Mixer,
    Mlp,
    Model,
    WeightDtypes,
)
from splitpoint.inputs.routing import MAX_SECONDS, MAX_TOKENS, Role, Routing, Scores, Tree
from splitpoint.record import Record

# Assumed: past any cluster that serves one model.
MAX_GPUS = 2**16
MAX_DEGREE = 2**12

GpuCount = Annotated[int, Meta(ge=1, le=MAX_GPUS)]
Degree = Annotated[int, Meta(ge=1, le=MAX_DEGREE)]


class Topology(Record, frozen=True, kw_only=True):
    """One instance: tensor, data, pipeline and expert parallel degrees.

    `dp` > 1 means attention ranks with a KV pool each that share the experts and step together.
    `ep` is 1 (experts cut like any matrix) or tp x dp (each rank holds whole experts). `dcp`
    (decode context parallel): so many of the tp ranks that hold copies of a cache hold a share of
    its tokens each instead.
    """

    tp: Degree = 1
    dp: Degree = 1
    pp: Degree = 1
    ep: Annotated[int, Meta(ge=1)] = 1
    dcp: Degree = 1

    def problems(self) -> list[Problem]:
        """Faults of the degrees together, whatever the model."""
        faults = []
        if self.ep not in (1, self.tp * self.dp):
            hint = f"1 or tp x dp = {self.tp * self.dp}"
            faults.append(Problem("ep", f"{self.ep} is not possible", hint))
        if self.tp % self.dcp:
            faults.append(
                Problem("dcp", f"{self.dcp} does not divide tp {self.tp}", "a divisor of tp")
            )
        return faults

    @property
    def gpus(self) -> int:
        """GPUs of one instance."""
        return self.tp * self.dp * self.pp

    @property
    def rank_gpus(self) -> int:
        """GPUs that one data-parallel rank's requests lie on."""
        return self.tp * self.pp

    def __str__(self) -> str:
        parts = [f"TP{self.tp}"]
        parts += [f"DP{self.dp}"] if self.dp > 1 else []
        parts += [f"PP{self.pp}"] if self.pp > 1 else []
        parts += [f"DCP{self.dcp}"] if self.dcp > 1 else []
        parts += ["+EP"] if self.ep > 1 else []
        return "".join(parts)


class Pool(Record, frozen=True, kw_only=True):
    """`replicas` equal instances with one role. `gpu`: the name of what they run on."""

    role: Role
    topology: Topology
    replicas: GpuCount
    engine: Engine
    gpu: str = ""

    @property
    def gpus(self) -> int:
        """GPUs of the whole pool."""
        return self.replicas * self.topology.gpus

    def __str__(self) -> str:
        drafts = f" drafts={self.engine.drafts}" if self.engine.drafts else ""
        return f"{self.replicas}x{self.topology}{drafts}"


class Traffic(Record, frozen=True, kw_only=True):
    """How requests find an instance and pass from prefill to decode, where that is not the usual
    way of the routers, the GPUs and the engine.

    `transfer_bandwidth`: bytes per second of one GPU's port. `transfer_ports`: how many ports the
    GPUs of a machine share. `layerwise`: KV moves while its prompt is computed. `lease_s`: after so
    long a prefill instance frees what nobody will pull. `direct_below`: a request with fewer new
    tokens on its decode instance prefills there (conditional disaggregation); 0: none does.
    `scores` weigh for the `linear` router, `tree` is the `prefix_approx` one's.
    """

    transfer_bandwidth: LinkBandwidth | None = None
    transfer_ports: GpuCount | None = None
    layerwise: bool = False
    lease_s: Annotated[float, Meta(ge=0, le=MAX_SECONDS)] | None = None
    direct_below: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 0
    scores: Scores = Scores()
    tree: Tree = Tree()


class Deployment(Record, frozen=True, kw_only=True):
    """Pools and how requests find an instance: one mixed pool, or prefill and decode pools.

    `routing` chooses the mixed or prefill instance, `decode_routing` the decode instance.
    """

    pools: tuple[Pool, ...]
    routing: Routing = "prefix_aware"
    decode_routing: Routing = "least_kv"

    def problems(self) -> list[Problem]:
        """Faults of the set of pools."""
        roles = sorted(pool.role for pool in self.pools)
        if roles in (["mixed"], ["decode", "prefill"]):
            return []
        shown = [*roles[:4], f"and {len(roles) - 4} more"] if len(roles) > 5 else roles
        what = f"are {', '.join(shown) or 'none'}"
        return [Problem("pools", what, "one mixed pool, or one prefill and one decode pool")]

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
        differ = len({pool.gpu for pool in self.pools}) > 1
        return " + ".join(
            letters[pool.role] + str(pool) + (f" on {pool.gpu}" if differ else "")
            for pool in self.pools
        )


def problems(topology: Topology, model: Model) -> tuple[str, ...]:
    """Why the engine would refuse to run the model in this topology; empty where it runs."""
    experts = any(isinstance(layer.ffn, Experts) for layer in model.layers)
    words = [str(fault) for fault in topology.problems()]
    if topology.pp > len(model.layers):
        words.append(f"pp {topology.pp} is more than its {len(model.layers)} layers")
    if not experts and topology.dp > 1:
        words.append("dp above 1 is for mixture-of-experts models; use replicas")
    if not experts and topology.ep > 1:
        words.append("ep is for mixture-of-experts models")
    # Equal layers share one object, so each kind is judged once.
    for layer in dict.fromkeys(model.layers):
        stored = layer.weights or model.weights
        words += _mixer_problems(topology.tp, layer.mixer, stored) if layer.mixer else []
        words += _context_problems(topology, layer.mixer) if topology.dcp > 1 else []
        words += _ffn_problems(topology, layer.ffn, stored) if layer.ffn else []
    if model.drafter is not None:
        cut = problems(Topology(tp=topology.tp, dcp=topology.dcp), model.drafter)
        words += [f"{fault} (of the draft model)" for fault in cut]
    return tuple(dict.fromkeys(words))


def _mixer_problems(tp: int, mixer: Mixer, stored: WeightDtypes) -> list[str]:
    if isinstance(mixer, LinearState):
        return _state_problems(tp, mixer)
    words = _undivided(tp, "tp", mixer.heads, "attention heads")
    if isinstance(mixer, Compressed):
        words += _undivided(tp, "tp", mixer.o_groups, "output groups")
    if isinstance(mixer, Attention):
        if mixer.kv_heads % tp and tp % mixer.kv_heads:
            words.append(f"tp {tp} neither divides nor repeats {mixer.kv_heads} KV heads")
        elif not words:
            heads = max(1, mixer.kv_heads // tp)
            columns, dtype = heads * mixer.head_dim, stored.attention
            words += _unblocked(tp, "tp", columns, "KV columns", dtype, stored.scale_group)
    return words


def _context_problems(topology: Topology, mixer: Mixer | None) -> list[str]:
    """vLLM 0.32 config/model.py and kv_cache_interface.py: only copies can become shares, and
    windows are not cut."""
    if isinstance(mixer, Compressed):
        return ["dcp does not cut the windows of compressed attention"]
    if not isinstance(mixer, Attention):
        return []
    if mixer.window or mixer.chunk:
        return ["dcp does not cut sliding windows or chunks"]
    copies = topology.tp // mixer.kv_heads
    if topology.dcp > max(copies, 1):
        return [f"dcp {topology.dcp} is more than the {max(copies, 1)} copies of each KV head"]
    if mixer.heads // mixer.kv_heads % topology.dcp:
        shared = mixer.heads // mixer.kv_heads
        return [f"dcp {topology.dcp} does not divide the {shared} query heads of a KV head"]
    return []


def _state_problems(tp: int, state: LinearState) -> list[str]:
    if state.kind in ("mamba1", "short_conv"):
        return _undivided(tp, "tp", state.conv_channels, "channels of the recurrent layers")
    words = _undivided(tp, "tp", state.heads, "heads of the recurrent layers")
    # Groups of mamba2 are repeated where tp does not divide them; keys of gdn and kda are not.
    if state.kind in ("gdn", "kda"):
        words += _undivided(tp, "tp", state.key_heads, "key heads of the recurrent layers")
    return words


def _ffn_problems(topology: Topology, ffn: Ffn, stored: WeightDtypes) -> list[str]:
    tp, ranks = topology.tp, topology.tp * topology.dp
    group = stored.scale_group
    dense = "columns of the feed-forward layers"
    if isinstance(ffn, Mlp):
        return _cut(tp, "tp", ffn.width, dense, stored.mlp, group)
    words = _cut(
        tp, "tp", ffn.shared_width, "columns of the shared experts", stored.shared_experts, group
    )
    words += _cut(tp, "tp", ffn.dense_width, dense, stored.mlp, group)
    if topology.ep == 1:
        # Without expert parallelism the experts are cut over the ranks of all dp groups.
        words += _cut(ranks, "tp x dp", ffn.width, "columns of each expert", stored.experts, group)
    elif topology.ep > ffn.count:
        words.append(f"ep {topology.ep} is more than its {ffn.count} experts")
    return words


def _cut(degree: int, name: str, width: int, what: str, dtype: Dtype, group: int) -> list[str]:
    words = _undivided(degree, name, width, what)
    return words or _unblocked(degree, name, width // degree, what, dtype, group)


def _undivided(degree: int, name: str, count: int, what: str) -> list[str]:
    return [f"{name} {degree} does not divide its {count} {what}"] if count % degree else []


def _unblocked(degree: int, name: str, left: int, what: str, dtype: Dtype, group: int) -> list[str]:
    """FP8 with scales of square blocks must leave every rank whole blocks (published:
    vllm-project/vllm#17569, #54178 and #45784; SGLang refuses the same)."""
    side = math.isqrt(group)
    square = side > 1 and side * side == group
    if degree == 1 or dtype != "fp8" or not square or left % side == 0:
        return []
    return [f"{name} {degree} leaves {left} {what}, which FP8 blocks of {side} do not divide"]
