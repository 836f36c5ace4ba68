"""The ladder rung by rung, in worlds with round numbers, and its estimates worked out by hand."""

import math
import tomllib
from importlib.resources import files

import pytest
from msgspec.structs import replace

from splitpoint.errors import PlanError
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import GIB
from splitpoint.inputs.model import Experts, Layer, Model
from splitpoint.pricing.engines import capture_sizes, decode_sizes, resolved, rules
from splitpoint.pricing.ladder import RUNGS, Ladder, activation_bytes, graph_bytes, ladder
from tests.pricing.geometry import attention, gib, gpu, model

DENSE = model([attention(8, 128)] * 32)
H100 = gpu(79.25, 80, "H100")
SET = {
    "weights": gib(15),
    "activations": gib(5),
    "non_torch": gib(0.5),
    "graphs": gib(1),
}


def climbed(
    engine: Engine, overrides: dict[str, int] | None = None, topology: Topology | None = None
) -> Ladder:
    place = topology or Topology()
    settled = resolved(engine, H100, place, DENSE)
    return ladder(DENSE, H100, place, settled, overrides=overrides)


def test_rungs_stand_in_order_and_add_up() -> None:
    rungs = climbed(Engine(utilization=0.9), SET)
    assert tuple(rung.name for rung in rungs.rungs) == RUNGS
    taken = sum(rung.bytes for rung in rungs.rungs[1:-1])
    assert rungs["physical"].bytes - taken == rungs["kv"].bytes
    assert rungs["physical"].bytes - rungs["driver"].bytes == H100.hbm
    assert rungs.kv_bytes == math.ceil(H100.hbm * 0.9) - gib(21.5)


def test_a_set_rung_says_so_and_has_no_band() -> None:
    rungs = climbed(Engine(), SET)
    assert {rungs["weights"].origin, rungs["graphs"].origin} == {"measured"}
    assert rungs.band == 0
    assert climbed(Engine()).band > 0
    assert climbed(Engine())["activations"].origin == "assumed"


def test_a_set_pool_is_the_pool() -> None:
    assert climbed(Engine(), {"kv": gib(7)}).kv_bytes == gib(7)


def test_what_does_not_fit_is_a_result_with_its_shortfall() -> None:
    rungs = climbed(Engine(utilization=0.9), {**SET, "weights": gib(100)})
    assert not rungs.fits
    assert rungs.kv_bytes == 0
    assert rungs.shortfall == gib(106.5) - math.ceil(H100.hbm * 0.9)


@pytest.mark.parametrize("overrides", [{"wieghts": 1}, {"weights": -1}])
def test_an_unknown_or_negative_rung_is_refused(overrides: dict[str, int]) -> None:
    with pytest.raises(PlanError, match="--set w"):
        climbed(Engine(), overrides)


def test_the_profile_run_peaks_in_the_sampler_when_sequences_are_many() -> None:
    engine = resolved(Engine(batched_tokens=1024, max_seqs=1024), H100, Topology(), DENSE)
    law = rules(engine, Topology())
    peak, origin, words, _ = activation_bytes(DENSE, Topology(), engine, law)
    assert peak == max(round(3.5 * 1024 * 32000 * 4) + 2 * 1024 * 1024 * 2, gib(0.56))
    older = replace(engine, version="0.11.0")
    peak, origin, words, _ = activation_bytes(DENSE, Topology(), older, rules(older, Topology()))
    assert peak == round(9.5 * 1024 * 32000 * 4) + 2 * 1024 * 1024 * 2
    assert "sampler" in words
    assert origin == "assumed"


def test_the_profile_run_peaks_in_the_widest_layer_when_tokens_are_many() -> None:
    engine = resolved(Engine(batched_tokens=32768, max_seqs=8), H100, Topology(), DENSE)
    law = rules(engine, Topology())
    peak, _, words, _ = activation_bytes(DENSE, Topology(), engine, law)
    assert peak == 32768 * (4 * 1024 + 3 * 4096) * 2
    assert "widest layer" in words
    halved, _, _, _ = activation_bytes(DENSE, Topology(tp=2), engine, law)
    assert halved == 32768 * (4 * 1024 + 3 * 2048) * 2


def test_experts_hold_a_token_once_for_each_that_it_takes() -> None:
    layer = Layer(mixer=attention(8, 128), ffn=Experts(count=64, active=4, width=512))
    mixture: Model = replace(DENSE, layers=(layer,) * 8)
    engine = resolved(Engine(batched_tokens=32768, max_seqs=8), H100, Topology(), mixture)
    law = rules(engine, Topology())
    peak, _, _, _ = activation_bytes(mixture, Topology(), engine, law)
    assert peak == 32768 * (4 * 1024 + 4 * (3 * 512 + 2 * 1024)) * 2


def test_outside_pytorch_one_gpu_needs_least_and_shared_experts_most() -> None:
    def outside(topology: Topology) -> int:
        return climbed(Engine(max_seqs=64), SET | {}, topology)["non_torch"].bytes

    free = {key: value for key, value in SET.items() if key != "non_torch"}

    def estimated(topology: Topology) -> int:
        return climbed(Engine(max_seqs=64), free, topology)["non_torch"].bytes

    assert outside(Topology(tp=8)) == SET["non_torch"]
    assert estimated(Topology()) == round(0.14 * GIB)
    assert (
        estimated(Topology())
        < estimated(Topology(tp=2))
        < estimated(Topology(tp=8))
        < estimated(Topology(tp=8, ep=8))
        < estimated(Topology(tp=8, dp=2, ep=16))
    )


def test_capture_sizes_are_dense_below_256_and_sparser_above() -> None:
    engine = resolved(Engine(max_seqs=256, version="0.26.0"), H100, Topology(), DENSE)
    assert engine.max_graph == 512
    assert capture_sizes(engine) == (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
    assert len(capture_sizes(engine)) == 51


def test_the_token_budget_and_the_widest_decode_step_are_captured_off_the_grid() -> None:
    engine = resolved(Engine(max_seqs=30, batched_tokens=93, drafts=2), H100, Topology(), DENSE)
    assert engine.max_graph == 93
    assert 93 in capture_sizes(engine)
    assert 90 in capture_sizes(engine)
    assert all(size % 3 == 0 for size in decode_sizes(engine))
    assert max(decode_sizes(engine)) == 90


def test_graphs_cost_their_first_capture_and_the_rest_by_layer() -> None:
    engine = resolved(Engine(max_seqs=64, batched_tokens=8192), H100, Topology(), DENSE)
    law = rules(engine, Topology())
    size, _, words, band = graph_bytes(DENSE, Topology(), engine, law, first=gib(1))
    pieces, decodes = len(capture_sizes(engine)), len(decode_sizes(engine))
    per_piece = round(0.17 * 2**20) * 32
    first = round(gib(1) * capture_sizes(engine)[-1] / 8192)
    assert size == first + (pieces - 1) * per_piece + (decodes - 1) * 2**20
    assert f"{pieces} piecewise" in words
    assert band == round(0.8 * size)


@pytest.mark.parametrize("engine", [Engine(graphs=False), Engine(version="0.19.1")])
def test_graphs_off_or_not_yet_charged_cost_the_pool_nothing(engine: Engine) -> None:
    assert climbed(engine)["graphs"].bytes == 0


def test_sglang_takes_its_fraction_of_what_is_free_before_loading() -> None:
    rungs = climbed(
        Engine(name="sglang", utilization=0.8), {"weights": gib(15), "non_torch": gib(2)}
    )
    free = H100.hbm - gib(2)
    assert rungs.kv_bytes == pytest.approx(0.8 * free - gib(15), abs=2)
    assert rungs["activations"].bytes == rungs["graphs"].bytes == 0


def test_tensorrt_llm_takes_its_fraction_of_what_is_free_after_loading() -> None:
    rungs = climbed(Engine(name="trtllm", utilization=0.9), SET)
    assert rungs.kv_bytes == pytest.approx(0.9 * (H100.hbm - gib(21.5)), abs=2)


def test_an_unset_engine_follows_the_gpu_and_the_version() -> None:
    def chosen(size: float, name: str, version: str) -> tuple[int | None, int | None]:
        device = gpu(size, size + 1, name)
        engine = resolved(Engine(version=version), device, Topology(), DENSE)
        return engine.batched_tokens, engine.max_seqs

    assert chosen(23.6, "RTX 4090", "0.32.0") == (2048, 256)
    assert chosen(79.2, "A100 80GB", "0.32.0") == (2048, 256)
    assert chosen(79.2, "H100", "0.32.0") == (8192, 1024)
    assert chosen(178.3, "B200", "0.32.0") == (16384, 1024)
    assert chosen(178.3, "B200", "0.26.0") == (8192, 1024)


def test_a_version_that_is_none_is_refused() -> None:
    with pytest.raises(PlanError, match="is not a version"):
        climbed(Engine(version="latest"))


SHARED_SOURCES = {"per_rank": "group_source", "logits_copies": "shared_experts_source"}


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm"])
def test_every_number_of_an_engine_that_is_not_nought_has_its_source(name: str) -> None:
    path = files("splitpoint") / "facts" / "engines" / f"{name}.toml"
    for section, table in tomllib.loads(path.read_text("utf-8")).items():
        for key, value in table.items():
            if isinstance(value, float) and value not in (0.0, 1.0):
                source = table.get(SHARED_SOURCES.get(key, f"{key}_source"), "")
                assert len(source) >= len("assumed"), f"{name}: {section}.{key}"


def test_tensorrt_llm_captures_fewer_sizes_for_padded_batches() -> None:
    padded = resolved(Engine(name="trtllm", max_graph=600), H100, Topology(), DENSE)
    assert capture_sizes(padded) == (1, 2, 4, *range(8, 129, 8), 256, 512, 600)
    exact = replace(padded, graph_padding=False)
    assert capture_sizes(exact) == (*range(1, 33), 64, 128, 256, 512, 600)


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm"])
def test_stated_graph_sizes_are_the_sizes(name: str) -> None:
    engine = Engine(name=name, graph_sizes=(48, 1, 16))  # type: ignore[arg-type]
    engine = resolved(engine, H100, Topology(), DENSE)
    assert capture_sizes(engine) == (1, 16, 48)
    assert engine.max_graph == 48


def test_other_engines_capture_decode_batches_only() -> None:
    for name, largest in (("sglang", 256), ("trtllm", 128)):
        engine = resolved(Engine(name=name), H100, Topology(), DENSE)  # type: ignore[arg-type]
        assert engine.max_graph == largest
        assert decode_sizes(engine) == capture_sizes(engine)
        assert capture_sizes(engine)[-1] == largest
        assert capture_sizes(replace(engine, graphs=False)) == ()
