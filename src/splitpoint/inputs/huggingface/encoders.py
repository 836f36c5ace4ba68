"""Parameters of the vision encoder that a multimodal model loads beside its text part.

An estimate from the encoder's own keys, for the common shape (a ViT and a projection): attention
and MLP of each layer, the patch embedding and the merger. Good to some per cent of the encoder,
which is itself a few per cent of the model; 0 where the keys do not say.
"""

from collections.abc import Mapping

from splitpoint.inputs.huggingface.keys import MAX_LAYERS, Keys


def encoder_parameters(outer: Keys) -> int:
    """Weights of the vision tower: layers x (4 w^2 + 2 or 3 w x mlp) + patches + projection."""
    table = outer.values.get("vision_config")
    if not isinstance(table, Mapping):
        return 0
    keys = Keys(table)
    width = _first(keys, "hidden_size", "vt_hidden_size", "embed_dim")
    depth = _first(keys, "num_hidden_layers", "depth", "vt_num_hidden_layers")
    inner = _first(keys, "intermediate_size", "vt_intermediate_size") or 4 * width
    if not width or not depth or depth > MAX_LAYERS:
        return 0
    gated = keys.values.get("model_type") in ("pixtral", "gemma4_vision", "qwen2_5_vl")
    layers = depth * (4 * width * width + (3 if gated else 2) * width * inner)
    patch = _first(keys, "patch_size") ** 2 * (_first(keys, "in_channels", "num_channels") or 3)
    patches = patch * (_first(keys, "temporal_patch_size") or 1) * width
    positions = _first(keys, "num_position_embeddings") * width
    return layers + patches + positions + _projection(outer, keys, width)


def _projection(outer: Keys, keys: Keys, width: int) -> int:
    """Two matrices from merged patches to the text's hidden size."""
    text = outer.values.get("text_config")
    hidden = _first(Keys(text), "hidden_size") if isinstance(text, Mapping) else 0
    out = _first(keys, "out_hidden_size", "text_hidden_size") or hidden
    merge = _first(keys, "spatial_merge_size") or _first(outer, "spatial_merge_size") or 1
    merged = width * merge * merge
    deep = keys.values.get("deepstack_visual_indexes")
    mergers = 1 + (len(deep) if isinstance(deep, list) and len(deep) < MAX_LAYERS else 0)
    if merge > 1 and keys.values.get("model_type") == "pixtral":
        return merged * width + width * out + out * out
    return mergers * (merged * merged + merged * out) if merge > 1 else width * out


def _first(keys: Keys, *names: str) -> int:
    """The first of `names` that is a whole number, else 0: an estimate is never an error."""
    for name in names:
        value = keys.values.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31:
            return value
    return 0
