"""Model descriptions as the Hugging Face hub keeps them: a config.json to a `Model`."""

from splitpoint.inputs.huggingface.config import from_config
from splitpoint.inputs.huggingface.index import with_index
from splitpoint.inputs.huggingface.sources import catalogue, load_model

__all__ = ["catalogue", "from_config", "load_model", "with_index"]
