"""What drafts for a model, and what is refused."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.drafter import assumed_head, draft_layers, method_of, with_drafter
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.huggingface import from_config, load_model
from splitpoint.inputs.model import Attention, Latent, Mlp
from splitpoint.pricing.weights import layer_parts

# The geometry of yuhuili/EAGLE3-LLaMA3.1-Instruct-8B.
HEAD = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "max_position_embeddings": 2048,
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
    "torch_dtype": "float16",
}
LLAMA = load_model("meta-llama/Llama-3.1-8B-Instruct")


def config_file(folder: Path, config: dict[str, object]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def test_a_head_reads_three_layers_and_drafts_part_of_the_vocabulary() -> None:
    head = from_config(HEAD, "here")
    (layer,) = head.layers
    assert isinstance(layer.mixer, Attention) and layer.mixer.joined
    assert (head.fused, head.vocab, head.hidden) == (3 * 4096, 32000, 4096)
    wide = from_config({**HEAD, "target_hidden_size": 8192, "model_type": "kimi_k2"}, "here")
    assert wide.fused == 3 * 8192


def test_a_head_of_the_speculators_library_keeps_its_layer_in_a_table() -> None:
    layer = {key: HEAD[key] for key in HEAD if key not in ("architectures", "draft_vocab_size")}
    config = {
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": 32000,
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer,
    }
    assert from_config(config, "here").layers == from_config(HEAD, "here").layers
    assert from_config(config, "here").vocab == 32000


def test_a_head_of_latent_layers_keeps_their_vector_and_is_dense() -> None:
    latent = {
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 384,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 0,
    }
    config = {**HEAD, **latent, "architectures": ["Eagle3DeepseekV2ForCausalLM"]}
    (layer,) = from_config(config, "here").layers
    assert layer.mixer == Latent(
        heads=32,
        kv_rank=512,
        nope_dim=128,
        rope_dim=64,
        value_dim=128,
        q_rank=1536,
        joined=True,
    )
    assert layer.ffn == Mlp(width=14336)
    # The down-projections read twice the hidden size, and the hidden state has a norm of its own.
    own = sum(part.whole for part in layer_parts(layer, 4096))
    alone = replace(layer, mixer=replace(layer.mixer, joined=False))
    plain = sum(part.whole for part in layer_parts(alone, 4096))
    assert own - plain == 4096 * (1536 + 512 + 64) + 4096


@pytest.mark.parametrize(
    "name", ["EagleLlamaForCausalLM", "PEagleDraftModel", "MedusaModel", "DeepSeekMTPModel"]
)
def test_heads_of_other_kinds_are_refused_and_not_read_as_models(name: str) -> None:
    with pytest.raises(PlanError, match=f"{name} is a draft head that is not priced"):
        from_config({**HEAD, "architectures": [name]}, "here")


def test_a_head_without_the_targets_states_is_refused() -> None:
    config = {**HEAD, "eagle_config": {"use_aux_hidden_state": False}}
    with pytest.raises(PlanError, match="use_aux_hidden_state"):
        from_config(config, "here")


def test_a_named_head_drafts_and_a_plain_model_drafts_as_one(tmp_path: Path) -> None:
    head = config_file(tmp_path, HEAD)
    engine = Engine(drafts=3, draft_model=head)
    served = with_drafter(LLAMA, [engine])
    assert method_of(engine, served) == "eagle3"
    assert draft_layers(engine, served) == from_config(HEAD, "here").layers
    small = Engine(drafts=3, draft_model="Qwen/Qwen3-0.6B")
    drafted = with_drafter(load_model("Qwen/Qwen3-32B"), [small])
    assert method_of(small, drafted) == "draft_model"
    assert len(draft_layers(small, drafted)) == 28


def test_without_a_name_a_head_of_the_published_shape_is_assumed() -> None:
    engine = Engine(drafts=3, draft_method="eagle3")
    head = with_drafter(LLAMA, [engine]).drafter
    assert head is not None and head.inferred
    (layer,) = head.layers
    # Llama 3.1 8B's own head has just these: 32 heads of 8, 3.5 x 4,096 columns, 32,000 tokens.
    assert layer == from_config(HEAD, "here").layers[0]
    assert (head.vocab, head.fused) == (32000, 3 * 4096)
    latent = assumed_head(load_model("deepseek-ai/DeepSeek-R1")).layers[0]
    assert isinstance(latent.mixer, Attention) and latent.mixer.heads == 64
    assert latent.ffn == Mlp(width=25088)


def test_the_text_before_drafts_when_asked_though_the_model_has_layers_for_it() -> None:
    deepseek = load_model("deepseek-ai/DeepSeek-R1")
    assert method_of(Engine(drafts=1), deepseek) == "mtp"
    ngram = Engine(drafts=1, draft_method="ngram")
    assert with_drafter(deepseek, [ngram]) == deepseek
    assert draft_layers(ngram, deepseek) == ()
    assert method_of(Engine(drafts=1), LLAMA) == "ngram"


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    head = config_file(tmp_path, HEAD)
    with pytest.raises(PlanError, match="ngram drafts without a model"):
        with_drafter(LLAMA, [Engine(drafts=1, draft_method="ngram", draft_model=head)])
    with pytest.raises(PlanError, match="draft_model does not draft with"):
        with_drafter(LLAMA, [Engine(drafts=1, draft_method="draft_model", draft_model=head)])
    with pytest.raises(PlanError, match=r"reads hidden states of 12,288 columns"):
        with_drafter(load_model("Qwen/Qwen3-32B"), [Engine(drafts=1, draft_model=head)])
    with pytest.raises(PlanError, match="differs: eagle3, ngram"):
        with_drafter(
            LLAMA, [Engine(draft_method="ngram"), replace(Engine(), draft_method="eagle3")]
        )
