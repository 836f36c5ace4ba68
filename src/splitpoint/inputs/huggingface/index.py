"""The index of a sharded safetensors checkpoint: what its publisher says all tensors weigh."""

import re
from pathlib import Path

from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.huggingface.sources import read_json
from splitpoint.inputs.model import Model

DRAFT_NAME = re.compile(r"(?:^|\.)(?:mtp|nextn|mtp_block)s?\.")
LAYER_NAME = re.compile(r"(?:^|\.)layers\.(\d{1,5})\.")
MAX_SIZE = 2**50  # assumed: a hundred times the largest published checkpoint


def with_index(model: Model, path: Path) -> Model:
    """The model with the bytes that a model.safetensors.index.json states for its tensors."""
    where = str(path)
    index = read_json(path)
    metadata = index.get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size <= MAX_SIZE:
        raise PlanError(
            f"{where}: metadata.total_size", "is not a number of bytes", "a safetensors index"
        )
    names = index.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise PlanError(f"{where}: weight_map", "names no tensors", "a safetensors index")
    layers = {int(found[1]) for name in names if (found := LAYER_NAME.search(name))}
    drafted = any(DRAFT_NAME.search(name) for name in names)
    if layers and max(layers) + 1 < len(model.layers):
        raise PlanError(
            f"{where}: weight_map",
            f"ends at layer {max(layers)}, {model.name} has {len(model.layers)} layers",
            "the index of the same model",
        )
    past = bool(layers) and max(layers) >= len(model.layers)
    return replace(model, checkpoint=round(size), checkpoint_drafts=drafted or past)
