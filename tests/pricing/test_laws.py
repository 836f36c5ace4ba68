"""Laws that hold for every geometry: more memory, more ranks, longer requests, sums over ranks."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.model import Attention, Indexer, Latent, LinearState, Mixer, Model
from splitpoint.pricing.blocks import blocks_per_request, group_blocks
from splitpoint.pricing.concurrency import bytes_for, max_concurrency, requests_held
from splitpoint.pricing.engines import resolved
from splitpoint.pricing.handoff import handoff
from splitpoint.pricing.ladder import ladder
from tests.pricing.geometry import gib, gpu, laid, model

DEGREES = (1, 2, 4, 8)
DTYPES = ("auto", "bf16", "fp8", "int8", "nvfp4")

attentions = st.builds(
    lambda heads, dim, window: Attention(
        heads=64, kv_heads=heads, head_dim=dim, value_dim=dim, window=window
    ),
    st.sampled_from([1, 2, 4, 8, 16, 32]),
    st.sampled_from([64, 128, 256]),
    st.sampled_from([0, 0, 128, 1000]),
)
latents = st.builds(
    lambda rank, sparse: Latent(
        heads=64,
        kv_rank=rank,
        nope_dim=128,
        rope_dim=64,
        value_dim=128,
        indexer=Indexer(heads=64, dim=128, topk=2048) if sparse else None,
    ),
    st.sampled_from([256, 512]),
    st.booleans(),
)
states = st.builds(
    lambda kind, heads, key_heads, dim: LinearState(
        kind=kind,
        heads=heads,
        rows=dim,
        columns=dim,
        conv_channels=2 * key_heads * dim + heads * dim,
        conv_kernel=4,
        key_heads=key_heads,
    ),
    st.sampled_from(["gdn", "kda"]),
    st.sampled_from([8, 16, 32, 64]),
    st.sampled_from([8, 16]),
    st.sampled_from([64, 128]),
)


@st.composite
def geometries(draw: st.DrawFn) -> Model:
    """One or two kinds of attention and at most one of state, in random numbers and order."""
    family: st.SearchStrategy[Mixer] = attentions if draw(st.booleans()) else latents
    kinds: list[Mixer] = draw(st.lists(family, min_size=1, max_size=2))
    if draw(st.booleans()):
        kinds.append(draw(states))
    layers = [kind for kind in kinds for _ in range(draw(st.integers(1, 12)))]
    return model(draw(st.permutations(layers)), drafts=kinds[:1])


engines = st.builds(
    Engine,
    kv_dtype=st.sampled_from(DTYPES),
    state_dtype=st.sampled_from(["auto", "bf16", "fp32"]),
    block_size=st.sampled_from([None, 16, 64]),
    batched_tokens=st.sampled_from([None, 512, 4096]),
    prefix_caching=st.booleans(),
    async_scheduling=st.booleans(),
    drafts=st.sampled_from([0, 0, 1, 3]),
    version=st.sampled_from(["0.14.1", "0.19.1", "0.24.0", "0.28.0", "0.32.0"]),
    name=st.sampled_from(["vllm", "vllm", "sglang", "trtllm"]),
    max_seqs=st.just(64),
)
degrees = st.sampled_from(DEGREES)
lengths = st.integers(1, 200_000)


@given(geometries(), engines, degrees, lengths, st.integers(0, 2**38), st.integers(0, 2**34))
@settings(max_examples=60, deadline=None)
def test_more_memory_never_admits_fewer(
    subject: Model, engine: Engine, tp: int, tokens: int, pool: int, more: int
) -> None:
    kv = laid(subject, engine, tp=tp)
    assert requests_held(kv, pool + more, tokens) >= requests_held(kv, pool, tokens)
    assert max_concurrency(kv, pool + more, tokens) >= max_concurrency(kv, pool, tokens)


@given(geometries(), engines, lengths)
@settings(max_examples=60, deadline=None)
def test_a_larger_tp_never_caches_more_bytes_of_data_on_a_rank(
    subject: Model, engine: Engine, tokens: int
) -> None:
    """Blocks are rounded, so the law is of what is sent: content, not whole pages."""
    content = []
    for tp in DEGREES:
        cost = handoff(subject, laid(subject, engine, tp=tp), tokens)
        content.append(cost.bytes_per_token * tokens + _states(subject, engine, tp))
    assert content == sorted(content, reverse=True)


@given(geometries(), degrees, lengths)
@settings(max_examples=50, deadline=None)
def test_a_larger_tp_never_takes_more_whole_blocks_where_the_block_is_fixed(
    subject: Model, tp: int, tokens: int
) -> None:
    plain = replace(
        subject,
        layers=tuple(x for x in subject.layers if not isinstance(x.mixer, LinearState)),
        draft_layers=(),
    )
    one, many = laid(plain, Engine(block_size=64)), laid(plain, Engine(block_size=64), tp=tp)
    taken = [blocks_per_request(kv, tokens) * kv.block_bytes for kv in (one, many)]
    assert taken[1] <= taken[0]


@given(geometries(), engines, degrees, lengths, lengths)
@settings(max_examples=60, deadline=None)
def test_a_longer_request_never_takes_fewer_blocks_of_any_group(
    subject: Model, engine: Engine, tp: int, tokens: int, more: int
) -> None:
    kv = laid(subject, engine, tp=tp)
    for group in kv.groups:
        assert group_blocks(kv, group, tokens + more) >= group_blocks(kv, group, tokens)


@given(geometries(), engines, degrees, lengths, st.integers(1, 100))
@settings(max_examples=60, deadline=None)
def test_the_bytes_for_a_number_of_requests_are_the_least_that_hold_them(
    subject: Model, engine: Engine, tp: int, tokens: int, requests: int
) -> None:
    kv = laid(subject, engine, tp=tp)
    need = bytes_for(kv, tokens, requests)
    assert requests_held(kv, need, tokens) == requests
    assert requests_held(kv, need - 1, tokens) == requests - 1


@given(geometries(), engines, degrees)
@settings(max_examples=60, deadline=None)
def test_a_block_holds_what_its_groups_write_and_every_layer_once(
    subject: Model, engine: Engine, tp: int
) -> None:
    kv = laid(subject, engine, tp=tp)
    for group in kv.groups:
        blocks = max(group.fixed, 1) if engine.name != "vllm" else 1
        assert 0 < group.content_bytes <= kv.block_bytes * blocks
    caching = len(subject.layers) + (len(subject.draft_layers) if engine.drafts else 0)
    assert sum(group.layers for group in kv.groups) == caching


@given(geometries(), engines, lengths)
@settings(max_examples=60, deadline=None)
def test_ranks_together_hold_the_whole_and_their_stated_copies(
    subject: Model, engine: Engine, tokens: int
) -> None:
    """Sum over ranks of what grows with the context = the whole + copies past the head count."""
    whole = handoff(subject, laid(subject, engine), tokens).bytes_per_token
    mixers = [
        layer.mixer for layer in (*subject.layers, *(subject.draft_layers if engine.drafts else ()))
    ]
    for tp in DEGREES:
        ranks = tp * handoff(subject, laid(subject, engine, tp=tp), tokens).bytes_per_token
        if any(isinstance(mixer, Latent) for mixer in mixers):
            expected = whole * tp
        else:
            expected = sum(
                _full_bytes(mixer, engine) * max(tp / mixer.kv_heads, 1)
                for mixer in mixers
                if isinstance(mixer, Attention) and mixer.window == 0
            )
        assert abs(ranks - expected) <= 1e-6 * expected + tp


@given(geometries(), engines, st.sampled_from([1, 2, 3, 4]))
@settings(max_examples=50, deadline=None)
def test_more_pipeline_stages_never_need_larger_blocks(
    subject: Model, engine: Engine, pp: int
) -> None:
    if len(subject.layers) < pp or engine.name != "vllm":
        return
    one, many = laid(subject, engine), laid(subject, engine, pp=pp)
    assert many.block_bytes <= one.block_bytes
    assert many.block_bytes * pp >= one.block_bytes
    assert many.block_tokens == one.block_tokens


@given(
    geometries(),
    st.floats(0.1, 1.0),
    st.floats(0.0, 0.5),
    st.floats(24, 288),
    st.floats(0, 100),
)
@settings(max_examples=50, deadline=None)
def test_a_larger_gpu_or_share_never_leaves_less_for_the_pool(
    subject: Model, share: float, more: float, hbm: float, extra: float
) -> None:
    one = Topology()

    def pool(utilization: float, size: float) -> int:
        device = gpu(size, size)
        engine = Engine(utilization=utilization, batched_tokens=2048, max_seqs=64)
        settled = resolved(engine, device, one, subject)
        return ladder(subject, device, one, settled, overrides={"weights": gib(10)}).rest

    assert pool(min(share + more, 1.0), hbm) >= pool(share, hbm)
    assert pool(share, hbm + extra) >= pool(share, hbm)


def _states(subject: Model, engine: Engine, tp: int) -> int:
    kv = laid(subject, engine, tp=tp)
    return sum(group.content_bytes for group in kv.groups if group.kind == "state")


def _full_bytes(mixer: Attention, engine: Engine) -> float:
    alone = laid(model([mixer]), replace(engine, drafts=0, block_size=None))
    return alone.block_bytes / alone.block_tokens
