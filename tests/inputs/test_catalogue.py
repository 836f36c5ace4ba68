"""The shipped models: complete, sourced, the size their publishers say, and as the hub has them."""

import json
import re
import sys
from pathlib import Path

import msgspec
import pytest

from splitpoint.inputs.huggingface import catalogue, from_config, load_model
from splitpoint.inputs.huggingface.sources import FACTS, Entry, entries, from_entry
from splitpoint.inputs.model import Attention, LinearState, Model
from splitpoint.pricing.weights import parameters

CONFIGS = (
    Path(sys.prefix)
    / f"lib/python{sys.version_info.major}.{sys.version_info.minor}"
    / "site-packages/aiconfigurator_core/model_configs"
)

# Cards that seem to leave the embedding table and the output head out (49.1B with them).
WITHOUT_TABLES = {"moonshotai/Kimi-Linear-48B-A3B-Instruct"}

# fmt: off
WANTED = (
    "Qwen/Qwen3.8-2.4T-A95B", "Qwen/Qwen3.8-27B-FP8", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-32B",
    "Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3.5-27B", "Qwen/Qwen3.5-35B-A3B",
    "Qwen/Qwen3.5-122B-A10B", "Qwen/Qwen3.5-397B-A17B", "Qwen/Qwen3.6-27B",
    "Qwen/Qwen3.6-35B-A3B", "Qwen/Qwen3-VL-235B-A22B-Instruct", "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-405B", "Llama-3.3-70B-FP8",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct", "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3.2", "deepseek-ai/DeepSeek-V4-Flash",
    "deepseek-ai/DeepSeek-V4-Pro", "moonshotai/Kimi-K2-Instruct", "moonshotai/Kimi-K2.5",
    "moonshotai/Kimi-K3", "moonshotai/Kimi-Linear-48B-A3B-Instruct", "zai-org/GLM-4.5",
    "zai-org/GLM-4.6", "zai-org/GLM-5", "zai-org/GLM-5.2", "zai-org/GLM-5.3",
    "openai/gpt-oss-20b", "openai/gpt-oss-120b", "google/gemma-3-27b-it",
    "google/gemma-4-26B-A4B", "MiniMaxAI/MiniMax-M2.5", "MiniMaxAI/MiniMax-M3",
    "mistralai/Mixtral-8x7B-v0.1", "mistralai/Mixtral-8x22B-v0.1",
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506", "nvidia/Nemotron-H-56B-Base-8K",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
    "ibm-granite/granite-4.0-h-small", "ai21labs/AI21-Jamba-1.5-Mini", "LiquidAI/LFM2-8B-A1B",
    "XiaomiMiMo/MiMo-V2-Flash", "stepfun-ai/Step-3.7-Flash", "microsoft/phi-4",
)
# fmt: on


def test_the_catalogue_holds_the_models_that_were_asked_for() -> None:
    assert len(catalogue()) >= 100
    for name in WANTED:
        assert load_model(name, offline=True).layers, name


def test_names_and_aliases_are_unique_and_files_are_called_after_them() -> None:
    spelled = [n.lower() for entry in entries() for n in (entry.name, *entry.aliases)]
    assert len(spelled) == len(set(spelled))
    for path in FACTS.glob("*.toml"):
        entry = msgspec.toml.decode(path.read_bytes(), type=Entry)
        names = [n.rpartition("/")[2].lower() for n in (entry.name, *entry.aliases)]
        assert path.stem in names


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_an_entry_says_where_it_comes_from(entry: Entry) -> None:
    assert re.search(r"https://|20\d\d|vLLM", entry.source)
    text = json.dumps(entry.config)
    assert all(f'"{key}"' in text for key in entry.inferred), "an inferred key is not there"


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_an_entry_has_the_parameters_that_its_publisher_states(entry: Entry) -> None:
    model = from_entry(entry)
    counted = parameters(model)
    total = counted.total + model.encoder
    if entry.name in WITHOUT_TABLES:
        total -= counted.embeddings + counted.lm_head
    if entry.parameters is not None:
        assert abs(total - entry.parameters) <= tolerance(entry.parameters)
    stated = re.search(r"[-_](\d+(?:\.\d+)?)([BT])(?=-|$)", entry.name)
    if stated and entry.parameters is None:
        scale = 10**9 if stated.group(2) == "B" else 10**12
        assert total == pytest.approx(float(stated.group(1)) * scale, rel=0.1)


def tolerance(published: int) -> float:
    """One per cent, or half of the last digit that a published count in B or T shows."""
    digits = str(published).rstrip("0")
    last: float = 10 ** (len(str(published)) - len(digits))
    return max(0.01 * published, min(0.5 * last, 0.05 * published))


def test_the_published_hybrids_keep_their_layer_counts() -> None:
    counted = {
        name: sum(isinstance(layer.mixer, LinearState) for layer in load_model(name).layers)
        for name in ("qwen3.8-2.4t", "Qwen3.5-27B", "Kimi-Linear-48B-A3B-Instruct", "Kimi-K3")
    }
    assert list(counted.values()) == [69, 48, 20, 69]


def test_qwen38_is_the_published_geometry_and_marks_what_was_inferred() -> None:
    model = load_model("qwen3.8-2.4t")
    state = model.layers[0].mixer
    assert isinstance(state, LinearState)
    assert (state.heads, state.rows, state.columns, state.key_heads) == (128, 128, 128, 16)
    full = model.layers[3].mixer
    assert isinstance(full, Attention) and (full.kv_heads, full.head_dim) == (4, 256)
    assert len(model.layers) == 92 and len(model.draft_layers) == 1
    # bf16: 3 columns of 20,480 channels and a 128 x 128 matrix for each of 128 heads
    assert 2 * 3 * state.conv_channels == 122_880
    assert 2 * state.heads * state.rows * state.columns == 4_194_304
    assert (model.weights.experts, model.weights.attention) == ("nvfp4", "bf16")
    assert any(line.startswith("hidden_size: ") for line in model.inferred)


@pytest.mark.skipif(not CONFIGS.is_dir(), reason="the aic extra is not installed")
def test_entries_read_as_the_whole_config_does() -> None:
    seen = 0
    for entry in entries():
        path = CONFIGS / (entry.name.replace("/", "--") + "_config.json")
        if not path.is_file():
            continue
        beside = path.with_name(path.name.replace("_config.json", "_hf_quant_config.json"))
        quant = json.loads(beside.read_bytes()) if beside.is_file() else None
        whole = from_config(json.loads(path.read_bytes()), "config.json", entry.name, quant)
        assert geometry(from_entry(entry)) == geometry(whole), entry.name
        seen += 1
    assert seen > 60


def geometry(model: Model) -> Model:
    """A model without what only the catalogue says of it; two encoders are not in the wheel."""
    encoder = 0 if "Llama-4" in model.name else model.encoder
    return msgspec.structs.replace(
        model, source="", architecture="", parameters=None, encoder=encoder, inferred=()
    )
