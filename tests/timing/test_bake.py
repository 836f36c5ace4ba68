"""A StepCurve is the operator sum at every point of its tables, and keeps the laws of steps."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from splitpoint.inputs import facts
from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine, EngineName
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.model import Experts, Indexer, Latent, Layer, LinearState, Model
from splitpoint.pricing.engines import resolved
from splitpoint.timing import bake, collectives, host
from splitpoint.timing.bake import gpu_seconds, step_curve
from splitpoint.timing.collectives import Exchange, stage_exchanges
from splitpoint.timing.curve import PICO, Picos
from splitpoint.timing.operators import Operator, step_operators
from tests.timing.worlds import ATTENTION, DENSE, ENGINE, GPU, MOE, batch

ONE = Topology()
# A host that waits for the GPU adds its gap to a step, one that runs ahead is a bound of these
# small models' steps.
WAITS = replace(ENGINE, async_scheduling=False)
HYBRID = replace(
    DENSE,
    max_len=50_000,
    layers=(
        *DENSE.layers[:1] * 2,
        Layer(mixer=replace(ATTENTION, window=64), ffn=None),
        Layer(
            mixer=LinearState(
                kind="gdn",
                heads=8,
                rows=16,
                columns=16,
                conv_channels=256,
                conv_kernel=4,
                key_heads=4,
            ),
            ffn=None,
        ),
        Layer(
            mixer=Latent(
                heads=8,
                kv_rank=64,
                nope_dim=16,
                rope_dim=8,
                value_dim=16,
                indexer=Indexer(heads=4, dim=16, topk=128),
            ),
            ffn=None,
        ),
        Layer(mixer=Latent(heads=8, kv_rank=64, nope_dim=16, rope_dim=8, value_dim=16), ffn=None),
    ),
)
MODELS = [DENSE, MOE, HYBRID]
TOPOLOGIES = [
    ONE,
    Topology(tp=4),
    Topology(tp=8, dcp=4),
    Topology(pp=2),
    Topology(tp=2, dp=2, ep=4),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("topology", [ONE, Topology(tp=2), Topology(pp=2)])
def test_the_parts_of_a_step_are_all_of_it(model: Model, topology: Topology) -> None:
    gap = host.gap(WAITS, GPU, np.array([8.0]))[0]
    step = batch(decode=8.0, context=8 * 4000.0)
    parts = bake.step_parts(model, GPU, topology, WAITS, step)
    exact = gpu_seconds(model, GPU, topology, WAITS, step)[0]
    assert sum(parts.values()) == pytest.approx(exact + gap)
    assert parts[bake.HOST] == pytest.approx(gap)
    assert (f"{bake.SENT['all_reduce']} over 2 ranks" in parts) == (topology.tp == 2)
    # A prompt is launched kernel by kernel, which takes longer than small kernels do.
    prompt = batch(prefill=16.0, pairs=136.0)
    parts = bake.step_parts(model, GPU, topology, WAITS, prompt)
    work = gpu_seconds(model, GPU, topology, WAITS, prompt)[0]
    gap = host.gap(WAITS, GPU, np.ones(1))[0]
    assert sum(parts.values()) >= work + gap - 1e-12


# Engines whose hosts wait, run ahead, launch drafts in pieces or one by one, agree with other
# ranks' hosts, and look for drafts in the text.
HOSTS = {
    "waits": WAITS,
    "ahead": ENGINE,
    "drafts": replace(ENGINE, drafts=2),
    "drafts, waits": replace(WAITS, drafts=3),
    "pieces": replace(ENGINE, drafts=3, version="0.26.1"),
    "one by one": replace(ENGINE, drafts=3, version="0.26.1", graph_mode="full_decode_only"),
    "text": replace(ENGINE, drafts=3, version="0.24.0", draft_method="ngram"),
    "eager": replace(ENGINE, graphs=False, drafts=1),
    "sglang": replace(ENGINE, name="sglang", version="0.5.10", drafts=3),
    "trtllm": replace(ENGINE, name="trtllm", version="1.1.0", drafts=1),
}


@pytest.mark.parametrize("platform", ["test GPU", "H200 SXM", "GB200", "MI300X"])
@pytest.mark.parametrize("engine", HOSTS.values(), ids=HOSTS)
def test_the_parts_sum_to_the_step_that_is_simulated(engine: Engine, platform: str) -> None:
    gpu = GPU if platform == GPU.name else facts.gpu(platform)
    for model, topology in (
        (drafting(DENSE), Topology(pp=2)),
        (drafting(MOE), Topology(dp=4, ep=4)),
        (drafting(replace(HYBRID, layers=HYBRID.layers[5:] * 3)), ONE),
    ):
        asked = resolved(replace(engine, batched_tokens=2048), gpu, topology, model)
        stages = step_curve(model, gpu, topology, asked).stages
        for running, length in ((1, 500), (7, 3000), (20, 1500)):
            context = running * length
            step = batch(decode=running, context=context, rows=running)
            told = sum(bake.step_parts(model, gpu, topology, asked, step).values())
            table = sum(
                float(c.decode[running] + c.decode_context[running] * context) for c in stages
            )
            # A slope is whole picoseconds a token.
            slack = len(stages) * context * PICO
            assert told == pytest.approx(table * PICO, abs=slack, rel=1e-3)
        # Attention of a chunk is no line in its length and prefix: up to 8% between them on these
        # small models.
        for new, prefix in ((2048, 0), (2048, 30_000), (512, 2000)):
            pairs = new * (prefix + (new + 1) / 2)
            step = batch(prefill=new, pairs=pairs, rows=1)
            told = sum(bake.step_parts(model, gpu, topology, asked, step).values())
            table = sum(
                float(c.mixed[new] + c.prefill_pair * pairs + c.prefill_prefix * prefix)
                for c in stages
            )
            slack = len(stages) * (pairs + prefix) * PICO
            assert told == pytest.approx(table * PICO, abs=slack, rel=0.1)


@pytest.mark.parametrize("model", MODELS, ids=["dense", "moe", "hybrid"])
@pytest.mark.parametrize("topology", TOPOLOGIES[:3], ids=str)
def test_a_decode_step_is_its_operators_at_any_context_past_the_windows(
    model: Model, topology: Topology
) -> None:
    curve = step_curve(model, GPU, topology, WAITS)
    for n in (1, 2, 16, 32):  # captured sizes: no padding
        for length in (128, 1000, 50_000):
            step = batch(decode=n, context=n * length, rows=n)
            gap = host.gap(WAITS, GPU, np.array([float(n)]))[0]
            exact = gpu_seconds(model, GPU, topology, WAITS, step)[0] + gap
            table = (curve.decode[n] + curve.decode_context[n] * n * length) * PICO
            # A slope is whole picoseconds a token; an indexer is no line, which hardly shows here.
            close = 5e-4 if model is HYBRID else 1e-6
            assert table == pytest.approx(exact, abs=n * length * PICO, rel=close)


@pytest.mark.parametrize("name", ["H100 SXM", "B200"])
def test_a_step_s_line_meets_its_selector_at_both_ends_and_is_not_under_it_between(
    name: str,
) -> None:
    # Scores of 64 and 256 queries outgrow the L2 on the way, an indexer's reading its launch.
    gpu = facts.gpu(name)
    model = replace(HYBRID, layers=HYBRID.layers[4:5] * 32, max_len=131_072)
    engine = replace(WAITS, max_seqs=256, max_graph=256)
    curve = step_curve(model, gpu, ONE, engine)
    for n in (1, 8, 64, 256):
        ratios = []
        for length in (2048, 8192, 16_384, 32_768, 65_536, 131_072):
            step = batch(decode=n, context=n * length, rows=n)
            gap = host.gap(engine, gpu, np.array([float(n)]))[0]
            exact = gpu_seconds(model, gpu, ONE, engine, step)[0] + gap
            table = (curve.decode[n] + curve.decode_context[n] * n * length) * PICO
            ratios.append(table / exact)
        # A slope is whole picoseconds a token.
        assert table == pytest.approx(exact, abs=n * length * PICO)
        assert min(ratios) > 0.999 and max(ratios) < 1.05


@pytest.mark.parametrize("model", MODELS, ids=["dense", "moe", "hybrid"])
def test_a_prefill_step_is_its_operators_at_any_number_of_pairs(model: Model) -> None:
    curve = step_curve(model, GPU, ONE, ENGINE)
    new = 256
    for length in (128, 1000, 50_000):
        step = batch(prefill=new, pairs=new * length, rows=1)
        gap = host.gap(ENGINE, GPU, np.ones(1))[0]
        exact = gpu_seconds(model, GPU, ONE, ENGINE, step)[0] + gap
        floor = host.launch_floor(ENGINE, GPU, np.array([new + 0.0]), 0.0)[0]
        assert floor == 0.0
        table = (curve.mixed[new] + curve.prefill_pair * new * length) * PICO
        eager = host.host_speed(ENGINE).launch * 1e3
        assert table == pytest.approx(exact, abs=new * length * PICO + eager, rel=1e-6)


@settings(max_examples=20, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    topology=st.sampled_from(TOPOLOGIES),
    drafts=st.integers(0, 3),
    graphs=st.booleans(),
)
def test_more_tokens_are_never_faster(
    model: Model, topology: Topology, drafts: int, graphs: bool
) -> None:
    engine = replace(ENGINE, drafts=drafts, graphs=graphs)
    curve = step_curve(model, GPU, topology, engine)
    assert len(curve.decode) == 33 and len(curve.mixed) == 257
    assert (np.diff(curve.decode) >= 0).all()
    assert (np.diff(curve.mixed) >= 0).all()
    # One more sequence with a context of its own makes the whole context term dearer (stages of a
    # pipeline share sequences out, so there only whole rounds compare).
    n = np.arange(topology.pp, 33, topology.pp)
    assert (np.diff(curve.decode_context[n] * n) >= -n[1:]).all()
    assert curve.prefill_pair > 0 and curve.drafts == drafts


@pytest.mark.parametrize("model", MODELS, ids=["dense", "moe", "hybrid"])
def test_chunks_between_the_priced_ones_are_within_a_percent(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = replace(ENGINE, batched_tokens=4096, max_graph=4096)
    priced = bake.grid(4096)
    assert priced[:512].tolist() == list(range(1, 513))
    assert (priced[-1], len(priced)) == (4096, 512 + 3 * 256)
    curve = step_curve(model, GPU, ONE, engine)
    monkeypatch.setattr(bake, "grid", lambda most: np.arange(1.0, most + 1.0))
    exact = step_curve(model, GPU, ONE, engine)
    error = np.abs(curve.mixed[1:] / exact.mixed[1:] - 1)
    assert np.median(error) < 0.01
    assert np.percentile(error, 95) < 0.05


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("active", [1, 8], ids=["sent", "gathered"])
def test_experts_serve_the_mean_of_the_ranks_and_attention_its_own(
    name: EngineName, active: int
) -> None:
    # A rank that sends its tokens one by one to the experts' ranks sends all of its own.
    topology = Topology(dp=4, ep=4)
    mixture = Experts(count=16, active=active, width=64, shared_width=64)
    model = replace(MOE, layers=(replace(MOE.layers[0], ffn=mixture),) * 4)
    engine = replace(ENGINE, name=name)
    curve = step_curve(model, GPU, topology, engine)
    assert curve.together is not None
    work = curve.together.work * PICO
    assert (np.diff(work) >= 0).all() and (work[1:] < curve.mixed[1:] * PICO).all()
    step = batch(prefill=200, pairs=200, rows=1)
    items: tuple[Operator | Exchange, ...] = (
        *step_operators(model, topology, engine, step),
        *stage_exchanges(model.layers, model, topology, engine, step),
    )
    names = {"experts", "experts.route"}
    if active == 8:
        names |= {"experts.gather", "experts.scatter"}
        if name == "sglang":
            names |= {"experts.router", "experts.add", "experts.sums"}
            names |= {"shared.up", "shared.activation", "shared.down"}
    taken = {item.name: bake._seconds(item, GPU, engine)[0] for item in items}
    assert names <= taken.keys()
    assert work[200] == pytest.approx(sum(taken[name] for name in names), rel=1e-6)
    assert curve.together.padded == (64 if name == "vllm" else 0)


def test_instances_that_share_nothing_have_nothing_together() -> None:
    assert step_curve(MOE, GPU, Topology(tp=4, ep=4), ENGINE).together is None
    assert step_curve(DENSE, GPU, Topology(dp=4), ENGINE).together is None


def test_a_slope_that_grows_as_chunks_shrink_is_a_price_of_the_prefix() -> None:
    tokens = bake.grid(8192)
    assert bake.walks(tokens, 3e-12 + 4000e-12 / tokens) == (3, 4000)
    assert bake.walks(tokens, np.full_like(tokens, 5e-12)) == (5, 0)
    assert bake.walks(tokens, 5e-12 - 100e-12 / tokens) == (5, 0)  # short chunks are no cheaper
    assert bake.walks(tokens[:64], np.full(64, 5e-12)) == (5, 0)


def test_decode_pads_to_captured_sizes_and_runs_eager_past_them() -> None:
    engine = replace(ENGINE, max_seqs=100, max_graph=64)
    curve = step_curve(DENSE, GPU, ONE, engine)
    work = curve.decode[1:] * PICO - host.gap(engine, GPU, np.arange(1.0, 101.0))
    assert work[8] == pytest.approx(work[15], rel=1e-6)  # 9 to 16 sequences run as 16
    assert work[15] < work[16]
    eager = host.host_speed(engine).launch
    assert work[64] > 4 * 8 * eager  # dozens of launches one by one


def test_without_padding_a_batch_between_two_sizes_is_launched_kernel_by_kernel() -> None:
    engine = replace(WAITS, max_seqs=20, graph_sizes=(1, 2, 4, 8, 16), graph_padding=False)
    engine = resolved(engine, GPU, ONE, DENSE)
    gap = host.gap(engine, GPU, np.arange(1.0, 21.0))
    work = step_curve(DENSE, GPU, ONE, engine).decode[1:] * PICO - gap
    # 7, 9 and 17 sequences: the host's launches.
    assert work[[8, 16]] == pytest.approx(work[6], rel=1e-6)
    assert work[7] < work[6] / 4 and work[15] < work[16] / 4  # 8 and 16: a graph each
    padding = replace(engine, graph_padding=True)
    padded = step_curve(DENSE, GPU, ONE, padding).decode[1:] * PICO - gap
    assert padded[8] == pytest.approx(padded[15], rel=1e-6)
    assert padded[15] == pytest.approx(work[15], rel=1e-6)


def test_pages_of_drafts_pad_in_whole_sequences() -> None:
    engine = replace(ENGINE, drafts=3)
    padded = host.padded(engine, np.array([1.0, 5.0, 16.0, 17.0]))
    assert padded.tolist() == [1.0, 6.0, 16.0, 17.0]


def test_synchronous_scheduling_shows_its_gap_and_a_host_ahead_only_where_it_is_slower() -> None:
    speed = host.host_speed(ENGINE)
    behind = speed.gap_async + 8 * speed.gap_sequence_async
    gap = speed.gap + 8 * speed.gap_sequence
    weak = replace(GPU, bandwidth=GPU.bandwidth / 1e4)
    fast, slow = (step_curve(DENSE, weak, ONE, engine) for engine in (ENGINE, WAITS))
    assert (slow.decode[8] - fast.decode[8]) * PICO == pytest.approx(gap - behind, rel=1e-3)
    # The GPU waits for its host: a step is as long as it takes to prepare one, longer on Grace.
    fast, slow = (step_curve(DENSE, GPU, ONE, engine) for engine in (ENGINE, WAITS))
    assert fast.decode[8] * PICO == pytest.approx(gap, rel=1e-6)
    assert fast.decode[8] < slow.decode[8]
    grace = replace(GPU, cpu="grace")
    assert step_curve(DENSE, grace, ONE, ENGINE).decode[8] * PICO == pytest.approx(2.75 * gap)
    more = step_curve(DENSE, grace, ONE, WAITS).decode[8] - slow.decode[8]
    assert more * PICO == pytest.approx(1.75 * gap, rel=1e-6)


def test_twice_the_machine_takes_half_the_time_where_nothing_waits() -> None:
    twice = replace(
        GPU,
        bandwidth=2 * GPU.bandwidth,
        flops=replace(GPU.flops, bf16=2 * GPU.flops.bf16, fp8=4e14),
    )
    big = replace(DENSE, hidden=8192, layers=DENSE.layers[:1], vocab=100_000)
    slow = step_curve(big, GPU, ONE, ENGINE)
    fast = step_curve(big, twice, ONE, ENGINE)
    # The exponentials of an attention are no matrix work: they take as long on both.
    assert slow.prefill_pair / 2 <= fast.prefill_pair < 0.75 * slow.prefill_pair
    assert fast.decode_context[32] == pytest.approx(slow.decode_context[32] / 2, abs=1)
    assert slow.mixed[256] / 2 < fast.mixed[256] < slow.mixed[256]


@pytest.mark.parametrize("model", MODELS, ids=["dense", "moe", "hybrid"])
def test_the_stages_of_a_pipeline_take_what_the_whole_takes_and_the_hand_overs(
    model: Model,
) -> None:
    engine = replace(WAITS, batched_tokens=4096)
    whole = step_curve(model, GPU, ONE, engine)
    for pp in (2, 4):
        stages = step_curve(model, GPU, Topology(pp=pp), engine).stages
        sent = exchange_seconds(model, Topology(pp=pp), engine, tokens=16.0)
        assert len(stages) == pp
        decode = sum(int(stage.decode[16]) for stage in stages)
        assert decode * PICO == pytest.approx(whole.decode[16] * PICO + (pp - 1) * sent, rel=1e-3)
        context = sum(int(stage.decode_context[16]) for stage in stages)
        assert context == pytest.approx(whole.decode_context[16], abs=pp)
        pairs = sum(stage.prefill_pair for stage in stages)
        assert pairs == pytest.approx(whole.prefill_pair, abs=pp)


def exchange_seconds(model: Model, topology: Topology, engine: Engine, *, tokens: float) -> float:
    """Seconds in which one stage sends the hidden states of a decode step to the next."""
    step = batch(decode=tokens)
    sent = collectives.stage_exchanges((), model, topology, engine, step)
    assert [exchange.pattern for exchange in sent] == ["send"]
    return float(collectives.seconds(sent[0], GPU, engine)[0])


def test_the_first_stage_waits_for_the_scheduler_and_the_last_has_the_logits() -> None:
    big = replace(DENSE, vocab=1_000_000)
    first, middle, third, last = step_curve(big, GPU, Topology(pp=4), ENGINE).stages
    assert third is middle
    gap = host.gap(ENGINE, GPU, np.array([16.0]))[0]
    # An embedding of 16 tokens is microseconds beside the gap.
    assert (first.decode[16] - middle.decode[16]) * PICO == pytest.approx(gap, abs=1e-5)
    logits = 2 * big.hidden * big.vocab / GPU.bandwidth
    assert (last.decode[16] - middle.decode[16]) * PICO > logits


def test_a_curve_bakes_fast_enough_for_a_search() -> None:
    engine = Engine(
        max_seqs=1024, batched_tokens=16384, max_graph=512, max_len=32768, block_size=16
    )
    start = time.process_time()
    step_curve(HYBRID, GPU, Topology(tp=4), engine)
    assert time.process_time() - start < 1.0


def test_an_unresolved_engine_is_a_fault_of_ours() -> None:
    with pytest.raises(AssertionError):
        step_curve(DENSE, GPU, ONE, Engine())


def test_dcp_makes_contexts_cheaper_and_every_step_dearer() -> None:
    latent = Latent(heads=64, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128, q_rank=1536)
    model = replace(DENSE, layers=(Layer(mixer=latent, ffn=None),) * 4)
    engine = replace(WAITS, batched_tokens=2048)
    whole, shares = (step_curve(model, GPU, Topology(tp=8, dcp=dcp), engine) for dcp in (1, 8))
    # Eight times the heads on an eighth of the vectors: at best an eighth of the time.
    ratio = shares.decode_context[1:] / whole.decode_context[1:]
    assert (ratio < 0.5).all() and (ratio >= 0.12).all()
    assert (shares.decode[1:] > whole.decode[1:]).all()
    # A chunk gathers its prefix, however long the chunk itself.
    assert shares.prefill_prefix > whole.prefill_prefix


@pytest.mark.parametrize("model", MODELS, ids=["dense", "moe", "hybrid"])
@pytest.mark.parametrize("drafts", [0, 2])
def test_a_full_step_with_decodes_is_its_operators(model: Model, drafts: int) -> None:
    engine = replace(ENGINE, drafts=drafts, max_graph=512)
    curve = step_curve(model, GPU, ONE, engine)
    assert curve.mixed_decode is not None and curve.mixed_decode[0] == 0
    for n, length in ((1, 500), (8, 1000), (32, 20_000)):
        new = 256 - n * (1 + drafts)
        step = batch(decode=n, context=n * length, prefill=new, pairs=new * 128, rows=n + 1)
        gap = host.gap(engine, GPU, np.array([n + 1.0]))[0]
        exact = gpu_seconds(model, GPU, ONE, engine, step)[0] + gap
        work = curve.mixed[256] + curve.mixed_decode[n]
        pairs = float(curve.prefill_pair * new * 128)
        found = (work + curve.decode_context[n] * n * length + pairs) * PICO
        # A slope is whole picoseconds a token, and a prefill's is that of the longest chunk.
        slack = (n * length + new * 128 + 0.2 * pairs) * PICO
        assert found == pytest.approx(exact, abs=slack, rel=5e-3)


def drafting(model: Model) -> Model:
    return replace(model, draft_layers=model.layers[:1])


def test_the_host_launches_drafts_in_pieces_before_they_were_captured() -> None:
    def launched(model: Model, **settings: str) -> int:
        engine = replace(Engine(drafts=3), **settings)
        return host.draft_launches(engine, drafting(model), kernels=60, attentions=6, passes=3)

    # Three passes of two layers: two attentions, three pieces, logits and sampling each. What has
    # experts or states came to the second runner later than what has neither.
    versions = ("0.9.2", "0.11.0", "0.24.0", "0.25.1", "0.28.0", "0.29.0")
    assert [launched(MOE, version=v) for v in versions] == [60, 21, 21, 21, 21, 0]
    assert [launched(HYBRID, version=v) for v in versions] == [60, 21, 21, 21, 21, 0]
    assert [launched(DENSE, version=v) for v in versions] == [60, 21, 21, 0, 0, 0]
    # Where only decode steps have graphs, the first runner has none for what drafts.
    only: dict[str, str] = {"graph_mode": "full_decode_only"}
    assert launched(MOE, version="0.26.1", **only) == 60
    assert launched(MOE, version="0.29.0", **only) == 0
    assert launched(DENSE, name="sglang", version="0.5.3") == 0


def test_hosts_of_dp_ranks_agree_before_each_pass_whose_shape_is_new() -> None:
    def agreed(model: Model = MOE, **settings: object) -> int:
        return host.agreements(replace(Engine(), **settings), drafting(model))

    assert agreed(version="0.11.2") == 0
    assert agreed(version="0.26.1", async_scheduling=False) == 0
    assert [agreed(version="0.26.1", drafts=k) for k in (0, 1, 2, 3)] == [1, 2, 3, 3]
    assert [agreed(version="0.29.0", drafts=k) for k in (0, 1, 3)] == [1, 1, 2]
    assert agreed(version="0.30.0", drafts=3) == 1
    assert agreed(version="0.26.1", drafts=3, draft_method="ngram") == 1
    assert agreed(name="sglang", version="0.5.3", drafts=3) == 0


def test_what_hosts_agree_on_shows_where_gpus_are_faster_and_hosts_are_far() -> None:
    asked = replace(
        ENGINE, drafts=2, version="0.26.1", graph_mode="full_decode_only", max_graph=256
    )
    model, wide = drafting(MOE), Topology(tp=1, dp=4, ep=4)
    apart = replace(GPU, gpus_per_node=2)

    def decode(gpu: Gpu, topology: Topology, engine: Engine) -> Picos:
        return step_curve(model, gpu, topology, resolved(engine, gpu, topology, model)).decode

    far, near = decode(apart, wide, asked), decode(GPU, wide, asked)
    # Three agreements, and the launches of what drafts, are longer than a step of this small model.
    assert far[1] - near[1] == pytest.approx(3 * (10e-3 - 0.39e-3) / PICO, rel=1e-3)
    # Slow GPUs hide them.
    slow = replace(apart, bandwidth=GPU.bandwidth / 1e5)
    assert decode(slow, wide, asked)[1] == decode(replace(slow, gpus_per_node=8), wide, asked)[1]
    # One rank agrees with nobody, and what is scheduled step by step asks the GPUs.
    alone = Topology(tp=4)
    assert (decode(apart, alone, asked) == decode(GPU, alone, asked)).all()
    plain = replace(asked, async_scheduling=False)
    assert (decode(apart, wide, plain) == decode(GPU, wide, plain)).all()
