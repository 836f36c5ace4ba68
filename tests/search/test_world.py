"""Worlds from deployments, field by field."""

import pytest
from msgspec.structs import replace

from splitpoint.inputs.deployment import Deployment, Pool, Topology, Traffic
from splitpoint.inputs.engine import Engine, EngineName
from splitpoint.inputs.facts import gpu
from splitpoint.inputs.gpu import GIB
from splitpoint.inputs.huggingface import load_model
from splitpoint.inputs.routing import Role, Routing, Scores, Tree
from splitpoint.inputs.workload import Workload
from splitpoint.search.world import candidate, candidate_of, path, pools, rank_choice, world
from splitpoint.sim.world import Reserve
from splitpoint.timing.host import host_speed
from tests.search import small


def test_a_pool_carries_the_instance_s_memory_and_settings() -> None:
    two = small.ready(Topology(tp=2))
    made = world(candidate_of([("mixed", two, 3)], "session"), small.model(), tokens=1000)
    (pool,) = made.pools
    assert (pool.role, pool.replicas, pool.dp, pool.gpus) == ("mixed", 3, 1, 2)
    assert pool.kv_blocks == two.holding.kv_bytes // two.holding.layout.block_bytes
    assert (pool.token_budget, pool.max_seqs) == (2048, 64)
    assert made.link is None
    assert made.routing == "session"


def test_a_block_of_shares_holds_the_tokens_of_all_ranks() -> None:
    copies, shares = (
        world(
            candidate_of([("mixed", small.ready(Topology(tp=8, dcp=dcp)), 1)], "session"),
            small.model(),
            tokens=1000,
        ).pools[0]
        for dcp in (1, 2)
    )
    assert shares.block_tokens == 2 * copies.block_tokens
    assert (shares.kv_blocks, shares.block_bytes) == (copies.kv_blocks, copies.block_bytes)


def test_a_transfer_moves_the_request_of_all_ranks() -> None:
    def link(tp: int) -> float:
        one = small.ready(Topology(tp=tp))
        made = path(
            candidate_of([("prefill", one, 1), ("decode", one, 1)], "round_robin"),
            small.model(),
            tokens=1000,
        )
        assert made is not None
        return made.bytes_per_token

    # Published: 98,304 bytes a token, whatever the number of ranks that share them (4 KV heads).
    assert [link(tp) for tp in (1, 2, 4)] == [98_304] * 3


def test_a_hybrid_s_pool_keeps_states_as_its_engine_s_version_does() -> None:
    hybrid = load_model("Qwen/Qwen3-Next-80B-A3B-Instruct")

    def kept(version: str, drafts: int = 0) -> tuple[bool, bool, bool]:
        engine = Engine(version=version, drafts=drafts, batched_tokens=8192, max_seqs=64)
        deployment = Deployment(
            pools=(Pool(role="mixed", topology=Topology(tp=4), replicas=1, engine=engine),)
        )
        (made,) = world(candidate(deployment, hybrid, [gpu("H100 SXM")]), hybrid, tokens=1000).pools
        return made.states, made.tails, made.drops_block

    assert kept("0.26.0") == (True, False, False)
    assert kept("0.32.0") == (True, True, False)
    assert kept("0.32.0", drafts=1) == (True, True, True)


def test_each_pool_has_the_memory_and_the_speed_of_its_own_gpu() -> None:
    h100, h20 = gpu("H100 SXM"), small.h20()
    pair = pools([("prefill", small.ready(), 1), ("decode", small.ready(), 1)])
    deployment = Deployment(pools=pair)
    unlike, alike, slow = (
        candidate(deployment, small.model(), gpus)
        for gpus in ((h100, h20), (h100, h100), (h20, h20))
    )
    for found, own in zip(unlike.instances, (alike.instances[0], slow.instances[1]), strict=True):
        assert found.holding == own.holding
        assert found.curve.mixed.tolist() == own.curve.mixed.tolist()
    assert alike.instances[0].curve.mixed[-1] < 0.5 * slow.instances[0].curve.mixed[-1]
    made = path(unlike, small.model(), tokens=1000)
    assert made is not None and made.origin.startswith("ib")
    assert (
        candidate_of(
            [("prefill", alike.instances[0], 1), ("decode", slow.instances[1], 1)],
            "round_robin",
        ).name
        == "P 1xTP1 on H100 SXM + D 1xTP1 on H20, round_robin"
    )


def test_the_plan_s_bandwidth_overrides_a_port() -> None:
    one = small.ready()
    candidate = candidate_of([("prefill", one, 1), ("decode", one, 1)], "round_robin")
    stated = Traffic(transfer_bandwidth=3.5e9)
    made = path(candidate, small.model(), tokens=1000, traffic=stated)
    assert made is not None and made.bandwidth == pytest.approx(3.5e9)


@pytest.mark.parametrize(("engine", "holder"), [("vllm", "lightest"), ("sglang", "first")])
def test_the_tree_is_that_of_the_engine_s_own_router(engine: EngineName, holder: str) -> None:
    one = small.ready()
    named = replace(one.engine, name=engine, version={"vllm": "0.32.0"}.get(engine, "0.5.10"))
    ready = replace(one, holding=replace(one.holding, engine=named))
    made = world(candidate_of([("mixed", ready, 2)], "prefix_approx"), small.model(), tokens=1000)
    assert made.tree.holder == holder


def test_what_a_file_states_of_traffic_is_the_world_s() -> None:
    one = small.ready()
    stated = Traffic(
        layerwise=True,
        lease_s=480.0,
        direct_below=64,
        scores=Scores(cache_weight=1.0),
        tree=Tree(balance_abs=8, holder="first"),
    )
    asked = Workload(isl=1000, osl=10, rate=1.0, timeout_s=5.0, abort_s=9.0)
    split, mixed = (
        world(parts, small.model(), tokens=1000, traffic=stated, workload=asked)
        for parts in (
            candidate_of([("prefill", one, 1), ("decode", one, 1)], "linear"),
            candidate_of([("mixed", one, 1)], "linear"),
        )
    )
    assert split.link is not None and (split.link.layerwise, split.link.lease_s) == (True, 480.0)
    assert (split.direct_below, mixed.direct_below) == (64, 0)
    for made in (split, mixed):
        assert (made.scores, made.tree) == (stated.scores, stated.tree)
        assert (made.timeout_s, made.abort_s) == (5.0, 9.0)


def test_names_tell_budgets_and_routings_apart() -> None:
    small_budget, large = small.ready(), small.ready(budget=8192)
    names = {
        candidate_of([("mixed", one, 2)], routing).name
        for one in (small_budget, large)
        for routing in ("random", "session")
    }
    assert len(names) == 4
    assert "2xTP1 budget=2048, random" in names


def test_host_memory_is_shared_by_the_gpus_of_a_rank() -> None:
    for tp, gib in ((1, 10.0), (2, 20.0)):
        one = small.ready(Topology(tp=tp))
        engine = replace(one.engine, host_kv_gib=gib, host_bandwidth=4e10)
        ready = replace(one, holding=replace(one.holding, engine=engine))
        made = world(candidate_of([("mixed", ready, 1)], "session"), small.model(), tokens=1000)
        (pool,) = made.pools
        assert pool.block_bytes == one.holding.layout.block_bytes
        assert pool.host_blocks == 10 * GIB // pool.block_bytes
        assert pool.host_bandwidth == 4e10
        assert pool.batches_in_flight == 2


def test_the_engine_s_name_chooses_the_scheduler() -> None:
    one = small.ready()
    engine = replace(one.engine, name="sglang", version="0.5.6")
    ready = replace(one, holding=replace(one.holding, engine=engine))
    made = world(
        candidate_of([("prefill", ready, 1), ("decode", ready, 1)], "session"),
        small.model(),
        tokens=1000,
    )
    assert [pool.reserve for pool in made.pools] == [Reserve(), Reserve()]
    assert [pool.prefix_caching for pool in made.pools] == [True, False]
    assert made.link is not None and made.link.reserve_first
    assert [pool.ranks for pool in made.pools] == ["lot", "tokens"]


@pytest.mark.parametrize(
    ("engine", "version", "routing", "ranks"),
    [
        ("vllm", "0.26.1", "round_robin", ["queue", "queue"]),
        ("vllm", "0.27.0", "round_robin", ["in_flight", "in_flight"]),
        ("sglang", "0.5.10", "round_robin", ["lot", "turn"]),
        ("sglang", "0.5.10", "session", ["lot", "requests"]),
        ("sglang", "0.5.10", "least_kv", ["lot", "tokens"]),
        ("trtllm", "1.1.0", "least_requests", ["router", "router"]),
    ],
)
def test_engines_name_ranks_as_their_versions_do(
    engine: EngineName, version: str, routing: Routing, ranks: list[str]
) -> None:
    named = replace(small.ready().engine, name=engine, version=version)
    roles: tuple[Role, ...] = ("prefill", "decode")
    made = Deployment(
        pools=tuple(
            Pool(role=role, topology=Topology(dp=dp), replicas=1, engine=named)
            for role, dp in zip(roles, (2, 4), strict=True)
        ),
        routing=routing,
        decode_routing=routing,
    )
    assert [rank_choice(pool, made) for pool in made.pools] == ranks


def test_vllms_router_names_the_ranks_of_instances_that_have_as_many() -> None:
    engine = replace(small.ready().engine, version="0.32.0")

    def choices(*pools: tuple[Role, int, int], name: EngineName = "vllm") -> set[str]:
        made = Deployment(
            pools=tuple(
                Pool(
                    role=role,
                    topology=Topology(dp=dp),
                    replicas=replicas,
                    engine=replace(engine, name=name),
                )
                for role, dp, replicas in pools
            )
        )
        return {rank_choice(pool, made) for pool in made.pools}

    assert choices(("mixed", 4, 2)) == {"router"}
    assert choices(("prefill", 4, 1), ("decode", 4, 1)) == {"router"}
    # One number is told, and no router stands before one instance.
    assert choices(("prefill", 4, 1), ("decode", 8, 1)) == {"in_flight"}
    assert choices(("mixed", 4, 1)) == {"in_flight"}


def test_sglang_orders_its_queue_as_the_plan_says() -> None:
    one = small.ready()
    for policy, longest_first, mixed in (("fcfs", False, True), ("lpm", True, False)):
        engine = replace(
            one.engine,
            name="sglang",
            version="0.5.6",
            schedule_policy=policy,
            mixed_chunk=mixed,
        )
        ready = replace(one, holding=replace(one.holding, engine=engine))
        parts = candidate_of([("mixed", ready, 1)], "session")
        (pool,) = world(parts, small.model(), tokens=1000).pools
        assert pool.reserve == Reserve(longest_first=longest_first, mixed=mixed)


def test_sglang_keeps_less_free_where_ranks_attend() -> None:
    one = small.ready()
    engine = replace(one.engine, name="sglang", version="0.5.6")
    held = replace(one.holding, engine=engine, topology=Topology(dp=4, ep=4))
    made = world(
        candidate_of([("mixed", replace(one, holding=held), 1)], "session"),
        small.model(),
        tokens=1000,
    )
    found = made.pools[0].reserve
    assert found is not None
    assert (found.first, found.least) == pytest.approx((0.3 * 0.7, 0.3 * 0.098))


def test_a_split_waits_for_its_decode_side_to_hear_of_a_request() -> None:
    one = small.ready()
    made = world(
        candidate_of([("prefill", one, 1), ("decode", one, 1)], "session"),
        small.model(),
        tokens=1000,
    )
    hop = host_speed(one.engine).hop
    assert made.link is not None and 0 < hop < made.link.latency < hop + 5e-3
