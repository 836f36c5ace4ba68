"""How the weights are stored: quantization_config or hf_quant_config.json to `WeightDtypes`.

A checkpoint names one format and the modules that stay out of it, or a format per module. Module
names differ by family, so each kind of weight is known here by all the names it goes by.
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, get_args

import msgspec

from splitpoint.inputs.huggingface.keys import Keys, Value, shown
from splitpoint.inputs.model import Dtype, Experts, Layer, LinearState, Mlp, WeightDtypes

Kind = Literal["attention", "attention_out", "state", "mlp", "experts", "shared_experts", "lm_head"]

DTYPES: dict[str, Dtype] = {
    "float32": "fp32",
    "float": "fp32",
    "fp32": "fp32",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp16": "fp16",
    "fp8": "fp8",
    "float8": "fp8",
    "float8_e4m3fn": "fp8",
    "fp8_e4m3": "fp8",
    "e4m3": "fp8",
    "int8": "int8",
    "nvfp4": "nvfp4",
}

# The formats that ModelOpt names in `quant_algo`.
ALGORITHMS: dict[str, Dtype] = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8",
    "W8A8_SQ_PER_CHANNEL": "int8",
    "MXFP8": "fp8",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "W4A8_NVFP4_FP8": "nvfp4",
    "W4A8_MXFP4_FP8": "mxfp4",
    "W4A16_AWQ": "int4",
    "W4A8_AWQ": "int4",
}

# What each kind is called below `layers.N.`; `self_attn` is also what Kimi calls its KDA mixer.
MODULES: dict[Kind, tuple[str, ...]] = {
    "attention": (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.qkv_proj",
        "self_attn.q_a_proj",
        "self_attn.q_b_proj",
        "self_attn.kv_b_proj",
        "attn.wq_a",
        "attn.wq_b",
        "attention.wq",
        "mixer.q_proj",
        "mixer.k_proj",
    ),
    "attention_out": (
        "self_attn.o_proj",
        "self_attn.out_proj",
        "attn.wo_b",
        "attention.wo",
        "mixer.o_proj",
    ),
    "state": (
        "linear_attn.in_proj_qkvz",
        "linear_attn.in_proj_qkv",
        "linear_attn.out_proj",
        "mamba.in_proj",
        "mixer.in_proj",
        "mixer.out_proj",
        "conv.in_proj",
    ),
    "mlp": (
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
        "mlp.gate_up_proj",
        "feed_forward.gate_proj",
        "feed_forward.up_proj",
        "ffn.w1",
        "mixer.up_proj",
        "mixer.down_proj",
    ),
    "experts": (
        "mlp.experts",
        "mlp.experts.0.gate_proj",
        "mlp.experts.0.up_proj",
        "mlp.experts.0.down_proj",
        "block_sparse_moe.experts.0.w1",
        "ffn.experts",
        "ffn.experts.0.w1",
        "mixer.experts.0.up_proj",
        "feed_forward.experts",
        "feed_forward.experts.0.gate_proj",
        "experts",
        "experts.0.gate_proj",
        "moe.experts.0.gate_proj",
    ),
    "shared_experts": (
        "mlp.shared_experts.gate_proj",
        "mlp.shared_experts.down_proj",
        "mlp.shared_expert.gate_proj",
        "mlp.shared_expert.up_proj",
        "mlp.shared_expert.down_proj",
        "block_sparse_moe.shared_experts.gate_proj",
        "ffn.shared_experts.w1",
        "mixer.shared_experts.up_proj",
        "mixer.shared_experts.down_proj",
        "feed_forward.shared_expert.gate_proj",
    ),
    "lm_head": ("lm_head", "head", "output"),
}

EXPERT = re.compile(r"\bexperts\.[1-9]")
LAYER = re.compile(r"layers\.(\d{1,5})(?=$|[.*])")
PREFIX = re.compile(r"^(?:(?:model|language_model|backbone|text_model|transformer)\.)+")
SLOW = re.compile(r"\)[*+{?]|\\[1-9]|\(\?|[*+]{2}|\{")
MAX_GENERAL = 64  # assumed: three times the most patterns that name no layer in a published list
MAX_PATTERN = 200  # assumed: the longest published module pattern has 60 characters


class Format(NamedTuple):
    """One storage format: its dtype and, where the dtype does not fix them, its scales."""

    dtype: Dtype
    scale_group: int = 0
    scale_bits: int = 0


class Target(NamedTuple):
    """A format for the modules that a pattern names."""

    pattern: str
    format: Format | None


class Quantization(NamedTuple):
    """What a checkpoint says: a format for all (None: unquantised), one per kind, module or
    pattern of modules, and the modules left out."""

    default: Format | None
    by_module: Mapping[str, Format]
    by_kind: Mapping[Kind, Format]
    ignored: tuple[str, ...]
    kv_dtype: Dtype | None
    targets: tuple[Target, ...] = ()

    def with_mxfp4_experts(self) -> "Quantization":
        """The same with routed experts in MXFP4 (DeepSeek V4 states them in a key of its own)."""
        return self._replace(by_kind={"experts": Format("mxfp4")})


UNQUANTISED = Quantization(None, {}, {}, (), None)


def dtype_of(keys: Keys, *names: str, default: Dtype | None = None) -> Dtype | None:
    """The dtype that a config spells its own way; 'auto' counts as absent."""
    word = keys.word(*names).removeprefix("torch.").lower()
    if word in ("", "auto"):
        return default
    if word not in DTYPES:
        keys.problem(names[0], f"{shown(word)} is not a dtype ({', '.join(sorted(DTYPES))})")
        return default
    return DTYPES[word]


def read_quantization(config: Keys, beside: Keys | None) -> Quantization:
    """The quantisation of a checkpoint: from its config, or from the file beside it."""
    inside = config.table("quantization_config", "compression_config")
    if inside.values:
        found = _read(inside)
        if found.kv_dtype is None and beside is not None:
            return found._replace(kv_dtype=_kv_dtype(beside.table("quantization")))
        return found
    if beside is not None:
        return _read(beside.table("quantization"))
    return UNQUANTISED


def _read(keys: Keys) -> Quantization:
    method = keys.word("quant_method").lower()
    ignored = keys.words(
        "ignore", "modules_to_not_convert", "exclude_modules", "ignored_layers", "exclude"
    )
    whole = Quantization(None, {}, {}, _patterns(keys, ignored), _kv_dtype(keys))
    algorithm = keys.word("quant_algo").upper()
    if algorithm == "MIXED_PRECISION":
        return _mixed(keys, whole)
    if algorithm:
        return whole._replace(default=_algorithm(keys, algorithm, keys))
    if method == "compressed-tensors" or keys.has("config_groups"):
        return _compressed(keys, whole)
    if method == "quark":
        return _quark(keys, whole)
    if method in ("fp8", "fbgemm_fp8", "modelopt_fp8"):
        return whole._replace(default=_fp8(keys))
    if method in ("awq", "gptq", "awq_marlin", "gptq_marlin", "auto-round"):
        return whole._replace(default=_integer(keys))
    if method == "mxfp4":
        # vLLM has no MXFP4 for plain linear layers: experts only, the rest stays as it was.
        return whole._replace(by_kind={"experts": Format("mxfp4")})
    if method:
        keys.problem("quant_method", f"{shown(method)} is not known (fp8, modelopt, awq, ...)")
    return whole


def _fp8(keys: Keys) -> Format:
    block = keys.counts("weight_block_size", low=1, high=65_536)
    return Format("fp8", block[0] * block[1], 32) if len(block) == 2 else Format("fp8")


def _integer(keys: Keys) -> Format:
    bits = keys.count("bits", "w_bit", default=4, high=16)
    group = keys.optional("group_size", "q_group_size", low=-1)
    if bits not in (4, 8):
        keys.problem("bits", f"{bits} bits are not supported (4 or 8)")
    # One fp16 scale and one packed zero point per group; -1 groups a whole column.
    return Format("int4" if bits == 4 else "int8", max(group or 0, 0), 16 + bits)


def _compressed(keys: Keys, whole: Quantization) -> Quantization:
    """compressed-tensors: one group for all linear layers, or groups that name their modules."""
    groups = keys.table("config_groups")
    default: list[Format | None] = []
    targets: list[Target] = []
    for name in list(groups.values)[:MAX_GENERAL]:
        group = groups.table(name)
        form, patterns = _group(group), group.words("targets")
        named = [p for p in patterns if p.startswith("re:") or "." in p or "*" in p]
        if named:
            targets += [Target(p, form) for p in _patterns(group, named)]
        else:
            default.append(form)
    if len(set(default)) > 1:
        keys.problem("config_groups", "several formats without the modules they apply to")
    found = default[0] if default else None
    return whole._replace(default=found, targets=tuple(targets[:MAX_GENERAL]))


def _quark(keys: Keys, whole: Quantization) -> Quantization:
    """AMD Quark: one weight format for all, others for the modules that a pattern names."""
    named = keys.table("layer_quant_config")
    targets = []
    for pattern in _patterns(named, list(named.values)[:MAX_GENERAL]):
        inside = next(n for n in named.values if _canonical(n) == pattern or n == pattern)
        targets.append(Target(pattern, _quark_weight(named.table(inside))))
    found = _quark_weight(keys.table("global_quant_config"))
    return whole._replace(default=found, targets=tuple(targets))


def _quark_weight(keys: Keys) -> Format | None:
    weight = keys.table("weight")
    word = weight.word("dtype").lower()
    if not word:
        return None
    if word == "fp4":
        return Format("mxfp4")
    if word.startswith(("fp8", "float8")):
        return Format("fp8")
    if word in ("int4", "uint4", "int8", "uint8"):
        bits = 4 if "4" in word else 8
        group = weight.optional("group_size", low=-1) or 0
        return Format("int4" if bits == 4 else "int8", max(group, 0), 16 + bits)
    weight.problem("dtype", f"{shown(word)} weights are not supported")
    return None


def _group(keys: Keys) -> Format | None:
    weights = keys.table("weights")
    if not weights.values:
        return None
    bits = weights.count("num_bits", high=64)
    kind = weights.word("type") or "int"
    group = weights.optional("group_size", low=-1) or 0
    if bits == 16:
        return None
    if kind == "float" and bits == 4:
        return Format("mxfp4" if group == 32 else "nvfp4")
    if kind == "float" and bits == 8:
        block = weights.counts("block_structure", low=1, high=65_536)
        if len(block) == 2:
            return Format("fp8", block[0] * block[1], 32)
        return Format("fp8", group, 8) if group > 0 else Format("fp8")
    if kind == "int" and bits in (4, 8):
        zero = 0 if weights.flag("symmetric", default=True) else bits
        return Format("int4" if bits == 4 else "int8", max(group, 0), 16 + zero)
    weights.problem("num_bits", f"{bits}-bit {kind} weights are not supported")
    return None


def _algorithm(keys: Keys, name: str, table: Keys) -> Format | None:
    dtype = ALGORITHMS.get(name)
    if dtype is None:
        keys.problem("quant_algo", f"{shown(name)} is not known ({', '.join(ALGORITHMS)})")
        return None
    if name == "MXFP8":
        return Format("fp8", 32, 8)
    if name == "FP8_PB_WO":
        return Format("fp8", 128 * 128, 32)
    if dtype == "int4":
        return Format("int4", max(table.optional("group_size", low=-1) or 128, 0), 16)
    return Format(dtype)


def _mixed(keys: Keys, whole: Quantization) -> Quantization:
    """ModelOpt's mixed precision: a format per module; where an older fp8 method is named as well,
    that one holds for the modules that are not listed."""
    layers = keys.table("quantized_layers")
    formats: dict[str, Format] = {}
    for name, entry in layers.values.items():
        # Experts of a layer share their format; the first speaks for the thousands.
        if EXPERT.search(name):
            continue
        table: Value = entry if isinstance(entry, Mapping) else {}
        algorithm = table.get("quant_algo")
        if not isinstance(algorithm, str) or algorithm.upper() not in ALGORITHMS:
            layers.problem(name, f"quant_algo {shown(algorithm)} is not known")
            break
        found = _algorithm(layers, algorithm.upper(), Keys(table))
        if found is not None:
            formats[_canonical(name)] = found
    base = _fp8(keys) if keys.word("quant_method").lower() == "fp8" else None
    if base is not None:
        # The ignore list is of the newer method; what it leaves out stays as the older one has it.
        return whole._replace(default=base, by_module=formats, ignored=())
    return whole._replace(by_module=formats)


def _kv_dtype(keys: Keys) -> Dtype | None:
    named = keys.get("kv_cache_quant_algo", "kv_cache_scheme")
    if isinstance(named, Mapping):
        scheme = Keys(named, f"{keys.path}kv_cache_scheme.", keys.problems)
        bits = scheme.count("num_bits", high=64)
        if scheme.word("type") == "float" and bits in (4, 8):
            return "fp8" if bits == 8 else "nvfp4"
        return "int8" if bits == 8 else None
    if named is None:
        return None
    word = named.lower() if isinstance(named, str) else ""
    if word not in DTYPES:
        keys.problem("kv_cache_quant_algo", f"{shown(named)} is not known (FP8, INT8, NVFP4)")
    return DTYPES.get(word)


def _patterns(keys: Keys, patterns: Iterable[str]) -> tuple[str, ...]:
    """The patterns in one spelling; a regular expression that could run for ever is refused."""
    kept: list[str] = []
    for pattern in patterns:
        slow = pattern.startswith("re:") and (
            SLOW.search(pattern.replace("(?:", "(")) or pattern.count("*") > 3
        )
        if slow or len(pattern) > MAX_PATTERN:
            keys.problem("ignore", f"{shown(pattern)} is not understood")
            continue
        if pattern.startswith("re:"):
            try:
                re.compile(pattern[3:])
            except re.error:
                keys.problem("ignore", f"{shown(pattern)} is not a regular expression")
                continue
            kept.append(pattern)
        else:
            kept.append(_canonical(pattern))
    if sum(not LAYER.match(pattern) for pattern in kept) > MAX_GENERAL:
        keys.problem("ignore", f"more than {MAX_GENERAL} patterns that name no layer")
        return ()
    return tuple(kept)


def _canonical(name: str) -> str:
    return PREFIX.sub("", name)


class Place(NamedTuple):
    """Where a module stands: the names in front of its own, and the layer's number."""

    prefixes: tuple[str, ...]
    layer: int = -1
    draft: bool = False


OUTSIDE = Place(("",))


class _Matcher:
    """Which modules the ignore list names, sorted so that a layer looks at its own entries only."""

    def __init__(self, quantization: Quantization) -> None:
        self.quantization = quantization
        self.everywhere: list[str] = []
        self.by_layer: dict[int, list[str]] = {}
        self.globs = [name for name in quantization.by_module if "*" in name]
        for pattern in quantization.ignored:
            # `layers.1*` is written for layer 1 alone, though as a glob it would name layer 10 too.
            own = LAYER.match(pattern)
            if own is None:
                self.everywhere.append(pattern)
            else:
                spelled = f"layers.{own.group(1)}.*" if pattern[own.end() :] == "*" else pattern
                self.by_layer.setdefault(int(own.group(1)), []).append(spelled)

    def format_of(self, kind: Kind, place: Place, beside: str = " ") -> Format | None:
        """The format of `kind` in one place; None: the model's dtype.

        Names under `beside` are not this kind's.
        """
        modules = [m for m in MODULES[kind] if not m.startswith(beside)]
        names = [prefix + module for prefix in place.prefixes for module in modules]
        listed = self._listed(names, place)
        if listed is not None:
            return listed
        default = self.quantization.by_kind.get(kind, self.quantization.default)
        # The methods that quantise linear layers leave the output head alone unless it is listed.
        if kind == "lm_head" or (default is None and not self.quantization.targets):
            return None
        patterns = self.everywhere + self.by_layer.get(place.layer, [])
        if any(_names(p, n) for p in patterns for n in names):
            return None
        named = (t for t in self.quantization.targets if any(_names(t.pattern, n) for n in names))
        return next((t.format for t in named), default)

    def _listed(self, names: list[str], place: Place) -> Format | None:
        """The format that a mixed checkpoint lists for the first of `names` that it lists.

        `layers.*` stands for the model's own layers, not for draft layers counted after them.
        """
        listed = self.quantization.by_module
        exact = next((listed[n] for n in names if n in listed), None)
        if exact is not None or place.draft:
            return exact
        globs = (g for n in names for g in self.globs if fnmatch.fnmatchcase(n, g))
        return next((listed[g] for g in globs), None)


def _names(pattern: str, name: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], "model." + name) is not None
    if "*" in pattern:
        whole = fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase("model." + name, pattern)
        return whole or fnmatch.fnmatchcase(name, pattern + ".*")
    return name == pattern or name.startswith(pattern + ".") or pattern in name.split(".")


def store(
    layers: tuple[Layer, ...],
    drafts: tuple[Layer, ...],
    dtype: Dtype,
    quantization: Quantization,
) -> tuple[WeightDtypes, tuple[Layer, ...], tuple[Layer, ...]]:
    """The commonest storage as the model's, and the layers with theirs where it differs."""
    matcher = _Matcher(quantization)
    kept = [_weights(matcher, layer, Place((f"layers.{i}.",), i)) for i, layer in enumerate(layers)]
    # Draft layers are called mtp.layers.N by some and follow the last layer in others.
    after = Place(("mtp.layers.0.", f"layers.{len(layers)}."), len(layers), draft=True)
    drafted = [_weights(matcher, layer, after) for layer in drafts]
    everything = _merge(kept, dtype)
    whole = _put(everything, "lm_head", matcher.format_of("lm_head", OUTSIDE), dtype)
    whole = msgspec.structs.replace(whole, embeddings=dtype)
    pool: dict[Layer, Layer] = {}

    def own(layer: Layer, weights: Mapping[str, Format | None]) -> Layer:
        mine = whole
        for kind, form in weights.items():
            mine = _put(mine, kind, form, dtype)
        made = layer if mine == whole else msgspec.structs.replace(layer, weights=mine)
        return pool.setdefault(made, made)

    return (
        whole,
        tuple(own(layer, w) for layer, w in zip(layers, kept, strict=True)),
        tuple(own(layer, w) for layer, w in zip(drafts, drafted, strict=True)),
    )


def _weights(matcher: _Matcher, layer: Layer, place: Place) -> dict[str, Format | None]:
    """The format of each kind of weight that this layer has."""
    kinds: list[Kind] = []
    if isinstance(layer.mixer, LinearState):
        kinds += ["state"]
    elif layer.mixer is not None:
        kinds += ["attention", "attention_out"]
    if layer.ffn is not None:
        kinds += ["mlp"] if isinstance(layer.ffn, Mlp) else ["experts"]
        if isinstance(layer.ffn, Experts):
            kinds += ["shared_experts"] if layer.ffn.shared_width else []
            kinds += ["mlp"] if layer.ffn.dense_width else []
    found: dict[str, Format | None] = {}
    for kind in kinds:
        found[kind] = matcher.format_of(kind, place)
    if isinstance(layer.ffn, Experts) and layer.ffn.dense_width:
        # `mlp` is then the dense block, and the experts stand beside it.
        found["experts"] = matcher.format_of("experts", place, beside="mlp.")
    kda = isinstance(layer.mixer, LinearState) and layer.mixer.kind == "kda"
    if kda:
        found["state"] = matcher.format_of("attention", place)
    return found


def _merge(layers: list[dict[str, Format | None]], dtype: Dtype) -> WeightDtypes:
    """For each kind the format that most layers have."""
    counts: dict[str, dict[Format | None, int]] = {}
    for layer in layers:
        for kind, form in layer.items():
            tally = counts.setdefault(kind, {})
            tally[form] = tally.get(form, 0) + 1
    merged = WeightDtypes(
        attention=dtype, state=dtype, mlp=dtype, experts=dtype, shared_experts=dtype
    )
    for kind, tally in counts.items():
        merged = _put(merged, kind, max(tally, key=lambda form: tally[form]), dtype)
    return merged


def _put(weights: WeightDtypes, kind: str, form: Format | None, dtype: Dtype) -> WeightDtypes:
    """`weights` with one kind set; the scales of the one format that needs them are kept."""
    stored = form or Format(dtype)
    if kind == "attention_out" and stored.dtype == weights.attention:
        made = msgspec.structs.replace(weights, attention_out=None)
    else:
        made = msgspec.structs.replace(weights, **{kind: stored.dtype})
    if stored.scale_group and not weights.scale_group:
        return msgspec.structs.replace(
            made, scale_group=stored.scale_group, scale_bits=stored.scale_bits
        )
    return made


assert set(MODULES) == set(get_args(Kind))
