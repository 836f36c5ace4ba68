"""The price of a request as the command prints it, from options to figures."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.facts import gpu as gpu_by_name
from splitpoint.inputs.huggingface import load_model
from splitpoint.pricing.price import Price, PricedRung, Question, compare, parse_layout, price
from tests.pricing.geometry import attention, gib, gpu, latent, model

OPTIONS: dict[str, Any] = {
    "model": "Qwen/Qwen3.8-2.4T-A95B",
    "gpu": None,
    "tp": 1,
    "dp": 1,
    "pp": 1,
    "ep": 1,
    "engine": "vllm",
    "engine_version": None,
    "kv_dtype": "fp8",
    "state_dtype": "bf16",
    "drafts": 0,
    "context": 9216,
    "utilization": None,
    "batched_tokens": None,
    "max_seqs": None,
    "prefix_caching": False,
    "block_size": None,
    "kv_bytes_available": "4 GiB",
    "rungs": [],
}
DENSE = model([attention(8, 128)] * 32)
H100 = gpu(79.25, 80, "H100")


def test_the_published_request_is_priced_as_published() -> None:
    priced = Question.of(**OPTIONS).price()
    assert priced.block_tokens == 2112
    assert [(g.kind, g.layers, g.blocks) for g in priced.groups] == [
        ("full", 23, 115),
        ("state", 69, 69),
    ]
    assert priced.request.blocks == 184
    assert priced.request.bytes == priced.unsharded_request_bytes == 759 * 2**20
    assert f"{priced.request.fixed_share:.1%}" == "37.5%"
    assert (priced.request.slots, priced.request.unused_slots) == (10_560, 1344)
    assert f"{priced.request.unused_share:.1%}" == "12.7%"
    # What a real server printed for the same geometry and pool.
    assert (priced.num_blocks, priced.kv_tokens_reported) == (43, 49536)
    assert f"{priced.max_concurrency:.2f}" == "5.38"
    assert priced.fits


@pytest.mark.parametrize(("tp", "drafts", "block"), [(8, 0, 1056), (4, 3, 2176), (8, 3, 1088)])
def test_its_blocks_follow_tp_and_drafts(tp: int, drafts: int, block: int) -> None:
    assert Question.of(**{**OPTIONS, "tp": tp, "drafts": drafts}).price().block_tokens == block


def test_the_command_has_the_keys_that_the_design_promises() -> None:
    priced = Question.of(**{**OPTIONS, "gpu": "GB300", "tp": 8, "ep": 8}).price()
    tree = msgspec.to_builtins(priced)
    assert {
        "block_tokens",
        "page_bytes",
        "groups",
        "request",
        "unsharded_request_bytes",
        "ladder",
        "kv_bytes_available",
        "num_blocks",
        "max_concurrency",
        "kv_tokens_reported",
        "fits",
        "shortfall",
        "warnings",
    } <= set(tree)
    assert {"blocks", "bytes", "fixed_bytes", "fixed_share", "unused_slots", "unused_share"} <= set(
        tree["request"]
    )
    assert {"kind", "layers", "blocks"} <= set(tree["groups"][0])
    assert {"rung", "bytes", "origin"} <= set(tree["ladder"][0])


def test_a_model_that_does_not_fit_is_priced_with_its_shortfall() -> None:
    engine = Engine(max_seqs=64)
    rungs = {"weights": gib(100), "activations": 0, "non_torch": 0, "graphs": 0}
    priced = price(DENSE, H100, Topology(), engine, context=1600, overrides=rungs)
    assert not priced.fits
    # One request of 100 blocks, block 0, and what the weights need beyond the budget.
    budget = next(r.bytes for r in priced.ladder if r.rung == "kv")
    assert budget < 0
    assert priced.shortfall == 101 * priced.block_bytes - budget
    assert priced.kv_bytes_available == 0


def test_a_pool_one_byte_short_of_a_request_does_not_fit() -> None:
    need = 101 * 16 * 131072
    held = price(DENSE, None, Topology(), Engine(), context=1600, kv_bytes=need)
    short = price(DENSE, None, Topology(), Engine(), context=1600, kv_bytes=need - 1)
    assert (held.fits, held.requests_held, held.shortfall) == (True, 1, 0)
    assert (short.fits, short.shortfall) == (False, 1)


def test_without_a_context_the_longest_length_is_priced() -> None:
    assert price(DENSE, None, Topology(), Engine(), kv_bytes=gib(80)).request.tokens == 2**18
    short = Engine(max_len=4096)
    assert price(DENSE, None, Topology(), short, kv_bytes=gib(80)).request.tokens == 4096


@pytest.mark.parametrize(
    ("subject", "tp", "words"),
    [
        (model([latent()] * 4), 8, "all 8 ranks hold the same cache"),
        (model([attention(4, 128)] * 4), 8, "copied 2 times"),
        (DENSE, 2, "dividing a rank's memory"),
    ],
)
def test_it_warns_where_published_practice_goes_wrong(subject: Any, tp: int, words: str) -> None:
    priced = price(subject, None, Topology(tp=tp), Engine(), context=1000, kv_bytes=gib(10))
    assert any(words in warning for warning in priced.warnings)


def test_blocks_that_pools_of_other_degrees_cannot_take_are_warned_of() -> None:
    told = Question.of(**{**OPTIONS, "tp": 8, "drafts": 3}).price().warnings
    meeting = next(words for words in told if "handed between" in words)
    assert "blocks of 1,088 tokens" in meeting
    assert "tp 4 (2,176)" in meeting
    plain = price(DENSE, None, Topology(tp=2), Engine(), context=1000, kv_bytes=gib(10))
    assert not any("handed between" in words for words in plain.warnings)


def test_the_fraction_that_is_not_given_is_the_versions_own() -> None:
    def fraction(**change: Any) -> float:
        return Question.of(**{**OPTIONS, **change}).engine.utilization

    assert fraction() == 0.92
    assert fraction(engine_version="0.19.1") == 0.9
    assert fraction(engine="trtllm", engine_version="1.0") == 0.9


def test_dcp_makes_shares_of_the_copies_that_were_warned_of() -> None:
    subject = model([latent()] * 4)
    engine = Engine(max_seqs=4)

    def of(topology: Topology) -> Price:
        return price(subject, None, topology, engine, context=8000, kv_bytes=gib(10))

    copied, shared = of(Topology(tp=8)), of(Topology(tp=8, dcp=8))
    assert shared.topology == "TP8DCP8"
    assert shared.request.bytes * 8 == pytest.approx(copied.request.bytes, rel=0.02)
    assert shared.request.slots >= 8000 > shared.request.slots - 8 * shared.block_tokens
    assert not any("same cache" in words for words in shared.warnings)
    partly = of(Topology(tp=8, dcp=2)).warnings
    assert any("4 of 8 ranks each hold the same cache" in words for words in partly)


def test_a_plain_request_on_one_gpu_is_not_warned_of() -> None:
    engine = Engine(max_seqs=4)
    priced = price(DENSE, None, Topology(), engine, context=1000, kv_bytes=gib(10))
    assert priced.warnings == ()


def test_estimated_rungs_are_named_with_their_band() -> None:
    engine = Engine(max_seqs=4)
    priced = price(DENSE, H100, Topology(), engine, context=1000, overrides={"weights": gib(15)})
    assert any("rests on estimates" in warning for warning in priced.warnings)
    assert priced.kv_bytes_band > 0


@pytest.mark.parametrize(
    ("text", "topology"),
    [
        ("tp8", Topology(tp=8)),
        ("tp4dp4", Topology(tp=4, dp=4)),
        ("dp8ep8", Topology(dp=8, ep=8)),
        ("TP4DP4EP16", Topology(tp=4, dp=4, ep=16)),
        ("tp2dp4ep", Topology(tp=2, dp=4, ep=8)),
        ("tp1pp6", Topology(pp=6)),
        ("tp8dcp4", Topology(tp=8, dcp=4)),
        ("dcp2dp2tp4ep", Topology(tp=4, dp=2, ep=8, dcp=2)),
        ("eptp2dp2", Topology(tp=2, dp=2, ep=4)),
    ],
)
def test_a_layout_is_read_from_its_short_name(text: str, topology: Topology) -> None:
    assert parse_layout(text) == topology


@pytest.mark.parametrize(
    "text", ["", "8", "tp", "tp0", "ep0", "tp8tp4", "tp8x2", "tp-1", "tp8 dp2"]
)
def test_a_word_that_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="layout"):
        parse_layout(text)


def test_layouts_stand_side_by_side_in_the_order_asked() -> None:
    model_facts = load_model("Qwen/Qwen3-30B-A3B")
    names = ["tp8", "tp4dp2ep", "dp8ep8"]
    table = compare(
        model_facts,
        gpu_by_name("H20"),
        [parse_layout(name) for name in names],
        Engine(),
        context=33_600,
    )
    assert [row.layout for row in table.rows] == ["TP8", "TP4DP2+EP", "TP1DP8+EP"]
    assert all(row.gpus == 8 and row.fits for row in table.rows)
    for row in table.rows:
        assert row.requests_per_gpu == row.requests / 8
    # Four heads on eight ranks are copied: two tp groups of four hold more than one of eight.
    assert table.rows[1].requests > table.rows[0].requests


def test_a_thousand_layouts_take_under_two_seconds_of_cpu() -> None:
    facts = load_model("Qwen/Qwen3.8-2.4T-A95B")
    degrees = (1, 2, 4, 8)
    layouts = [parse_layout(f"tp{tp}dp{dp}ep") for tp in degrees for dp in degrees] * 63
    start = time.process_time()
    compare(facts, gpu_by_name("GB300"), layouts, Engine(), context=9216)
    assert time.process_time() - start < 2.0


HEAVY = "{'numpy', 'numba', 'altair', 'pandas', 'pyarrow', 'huggingface_hub'}"


@pytest.mark.parametrize(
    "words",
    [
        ["price", "Qwen/Qwen3-30B-A3B", "--gpu", "H20"],
        ["price", "Qwen/Qwen3-30B-A3B", "--gpu", "H20", "--compare", "tp1 tp2"],
        ["price", "Qwen/Qwen3-30B-A3B", "--gpu", "H20", "--json"],
    ],
    ids=["table", "compare", "json"],
)
def test_the_price_command_loads_no_heavy_library(words: list[str]) -> None:
    code = (
        "import sys\n"
        "from splitpoint.cli import main\n"
        f"sys.argv = ['splitpoint', *{words!r}]\n"
        "try:\n    main()\nexcept SystemExit as left:\n    assert not left.code\n"
        f"print(sorted({HEAVY} & set(sys.modules)), file=sys.stderr)\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Qwen3-30B-A3B" in shown.stdout
    assert shown.stderr.strip() == "[]"


def test_help_loads_neither_rooms_nor_markup() -> None:
    code = (
        "import sys\n"
        "from splitpoint.cli import main\n"
        "sys.argv = ['splitpoint', '--help']\n"
        "try:\n    main()\nexcept SystemExit as left:\n    assert not left.code\n"
        "rooms = {'splitpoint.inputs', 'splitpoint.pricing', 'rich.markdown'}\n"
        "print(sorted(rooms & set(sys.modules)), file=sys.stderr)\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage" in shown.stdout
    assert shown.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"engine": "triton"}, "--engine"),
        ({"engine_version": "latest"}, "version"),
        ({"kv_dtype": "fp7"}, "--kv-dtype"),
        ({"state_dtype": "complex"}, "--state-dtype"),
        ({"kv_bytes_available": None}, "price"),
        ({"kv_bytes_available": "lots"}, "--kv-bytes-available"),
        ({"utilization": 1.5}, "utilization"),
        ({"rungs": ["weights"]}, "--set weights"),
        ({"rungs": ["weights=heavy"], "gpu": "GB300"}, "--set weights"),
        ({"rungs": ["colour=1"], "gpu": "GB300"}, "--set colour"),
        ({"context": 10**9}, "--context"),
        ({"tp": 3}, "layout"),
        ({"gpu": "H1000"}, "H1000"),
        ({"model": "no-such-model"}, "no-such-model"),
    ],
)
def test_a_wrong_option_is_named(change: dict[str, Any], where: str) -> None:
    with pytest.raises(PlanError) as caught:
        Question.of(**{**OPTIONS, **change}).price()
    assert where in str(caught.value)


def test_rungs_and_pools_are_read_with_and_without_units() -> None:
    def of(pool: str | None, rungs: list[str]) -> Question:
        return Question.of(
            **{**OPTIONS, "gpu": "GB300", "kv_bytes_available": pool, "rungs": rungs}
        )

    assert of("4294967296", []).kv_bytes == of("4 GiB", []).kv_bytes == 2**32
    assert of(None, ["weights=169.5"]).overrides == {"weights": gib(169.5)}
    assert of(None, ["weights=10 GB"]).overrides == {"weights": 10**10}


DRAFTED: dict[str, Any] = {
    **OPTIONS,
    "model": "Qwen/Qwen3-32B",
    "kv_dtype": "auto",
    "kv_bytes_available": None,
    "gpu": "H200",
    "tp": 2,
    "drafts": 4,
    "prefix_caching": True,
}


def test_a_draft_model_brings_layers_and_weights_of_its_own() -> None:
    alone = Question.of(**DRAFTED).price()
    drafted = Question.of(**DRAFTED, draft_model="Qwen/Qwen3-0.6B").price()
    held = {rung.rung: rung.bytes for rung in alone.ladder}
    more = {rung.rung: rung.bytes for rung in drafted.ladder}
    draft = Question.of(**{**DRAFTED, "model": "Qwen/Qwen3-0.6B", "drafts": 0}).price()
    assert more["weights"] - held["weights"] == next(
        rung.bytes for rung in draft.ladder if rung.rung == "weights"
    )
    # 64 layers of four heads on a rank, and 28 more of four: all with 128 columns, in one group.
    assert (alone.block_bytes, drafted.block_bytes) == (64 * 16 * 2048, 92 * 16 * 2048)
    with pytest.raises(PlanError, match="nothing to draft"):
        Question.of(**{**DRAFTED, "drafts": 0}, draft_model="Qwen/Qwen3-0.6B")


def test_a_head_brings_a_layer_and_says_when_it_is_assumed() -> None:
    alone = Question.of(**DRAFTED).price()
    headed = Question.of(**DRAFTED, draft_method="eagle3").price()
    # 64 layers of four heads on a rank, and the head's one.
    assert (alone.block_bytes, headed.block_bytes) == (64 * 16 * 2048, 65 * 16 * 2048)
    told = [word for word in headed.warnings if word.startswith("EAGLE-3 head")]
    assert told == ["EAGLE-3 head: no draft_model is named; one layer of the published shape"]
    assert not [word for word in alone.warnings if "EAGLE" in word]
    with pytest.raises(PlanError, match="does not draft by mtp"):
        Question.of(**DRAFTED, draft_method="mtp").price()
    with pytest.raises(PlanError, match="--draft-method"):
        Question.of(**DRAFTED, draft_method="medusa")


def index_file(folder: Path, size: object, layers: int, extra: Sequence[str] = ()) -> Path:
    names = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(layers)]
    tree = {"metadata": {"total_size": size}, "weight_map": dict.fromkeys([*names, *extra], "a")}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(tree))
    return path


def test_weights_follow_the_checkpoints_index_where_one_is_given(tmp_path: Path) -> None:
    base = {
        **OPTIONS,
        "model": "Qwen/Qwen3-32B",
        "kv_dtype": "auto",
        "kv_bytes_available": None,
        "gpu": "H200",
    }

    def weights(tp: int, size: int | None) -> PricedRung:
        given = None if size is None else index_file(tmp_path, size, 64)
        ladder = Question.of(**{**base, "tp": tp}, weights_index=given).price().ladder
        return next(rung for rung in ladder if rung.rung == "weights")

    stated = 2 * 32_762_123_264  # its parameters, in 16 bit
    for tp in (1, 2, 8):
        assert weights(tp, stated).bytes == pytest.approx(weights(tp, None).bytes, rel=1e-4)
        assert weights(tp, stated).origin == "published"
    assert weights(2, 2 * stated).bytes == pytest.approx(2 * weights(2, None).bytes, rel=1e-2)


@pytest.mark.parametrize(
    ("size", "layers", "words"),
    [
        ("many", 64, "total_size"),
        (-1, 64, "total_size"),
        (True, 64, "total_size"),
        (10**10, 0, "names no tensors"),
        (10**10, 30, "ends at layer 29"),
    ],
)
def test_an_index_of_another_model_is_refused(
    size: object, layers: int, words: str, tmp_path: Path
) -> None:
    path = index_file(tmp_path, size, layers)
    with pytest.raises(PlanError, match=words):
        Question.of(**{**OPTIONS, "model": "Qwen/Qwen3-32B"}, weights_index=path)


def test_draft_tensors_in_an_index_are_not_charged_without_drafts(tmp_path: Path) -> None:
    base = {**OPTIONS, "gpu": "GB300", "tp": 8, "ep": 8, "kv_bytes_available": None}
    size = 10**12
    plain = Question.of(**base, weights_index=index_file(tmp_path, size, 92)).price()
    extra = ["mtp.layers.0.mlp.up_proj.weight"]
    drafted = Question.of(**base, weights_index=index_file(tmp_path, size, 92, extra)).price()
    assert drafted.ladder[3].rung == "weights"
    assert drafted.ladder[3].bytes < plain.ladder[3].bytes
