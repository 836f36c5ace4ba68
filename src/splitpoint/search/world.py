"""A deployment as the simulator takes it: pools, link and routers, all as numbers."""

from collections.abc import Sequence

from msgspec.structs import replace

from splitpoint.inputs.deployment import Deployment, Pool, Traffic
from splitpoint.inputs.drafter import method_of
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.gpu import GIB, Gpu
from splitpoint.inputs.model import Model
from splitpoint.inputs.routing import Role, Routing, Tree
from splitpoint.inputs.workload import Workload
from splitpoint.pricing.engines import rules
from splitpoint.pricing.engines.rules import Version, version_of
from splitpoint.pricing.handoff import handoff
from splitpoint.record import Record
from splitpoint.search.instance import Instance, holding, instance
from splitpoint.sim.world import PoolSpec, RankChoice, Reserve, World
from splitpoint.timing.host import host_speed
from splitpoint.timing.path import LEASE_S, LinkSpec
from splitpoint.timing.transfer import link, pieces

USUAL = Traffic()

# vLLM's front end counts the requests that it sent to a rank itself.
COUNTS_IN_FLIGHT = Version(0, 27)


class Candidate(Record, frozen=True, kw_only=True):
    """A deployment with the instance of each of its pools made ready, in pool order."""

    deployment: Deployment
    instances: tuple[Instance, ...]

    @property
    def shape(self) -> str:
        """The pools in words; a mixed pool with its token budget, which tells it from others."""
        pools = self.deployment.pools
        budgets = "".join(
            f" budget={ready.engine.batched_tokens}"
            for pool, ready in zip(pools, self.instances, strict=True)
            if pool.role == "mixed"
        )
        return f"{self.deployment}{budgets}"

    @property
    def name(self) -> str:
        """The shape with its routing."""
        return f"{self.shape}, {self.deployment.routing}"

    @property
    def front_s(self) -> float:
        """Seconds of a request in the front end, which it passes once, beside its input tokens'."""
        return max(ready.front_s for ready in self.instances)

    @property
    def front_token_s(self) -> float:
        """Seconds of an input token there."""
        return host_speed(self.instances[0].engine).front_token


def candidate(
    deployment: Deployment,
    model: Model,
    gpus: Sequence[Gpu],
    *,
    kv_pool_gib: float | None = None,
) -> Candidate:
    """A deployment made ready from its own engines, each pool on its GPU of `gpus`; its memory is
    its ladder's where `kv_pool_gib` does not state it."""
    return Candidate(
        deployment=deployment,
        instances=tuple(
            instance(model, holding(model, gpu, p.topology, p.engine, kv_pool_gib=kv_pool_gib))
            for p, gpu in zip(deployment.pools, gpus, strict=True)
        ),
    )


def pools(parts: Sequence[tuple[Role, Instance, int]]) -> tuple[Pool, ...]:
    """The pools of these roles, instances and counts."""
    return tuple(
        Pool(
            role=role,
            topology=ready.topology,
            replicas=count,
            engine=ready.engine,
            gpu=ready.gpu.name,
        )
        for role, ready, count in parts
    )


def candidate_of(parts: Sequence[tuple[Role, Instance, int]], routing: Routing) -> Candidate:
    """The candidate of these roles, instances and counts under a routing."""
    return Candidate(
        deployment=Deployment(pools=pools(parts), routing=routing),
        instances=tuple(ready for _, ready, _ in parts),
    )


def world(
    candidate: Candidate,
    model: Model,
    *,
    tokens: int,
    traffic: Traffic = USUAL,
    workload: Workload | None = None,
) -> World:
    """The world of a candidate. `tokens`: of a typical input, for what a transfer moves beside
    its bytes per token; `workload`: whose clients lose patience."""
    deployment = candidate.deployment
    return World(
        pools=tuple(
            _pool(model, pool, ready, deployment)
            for pool, ready in zip(deployment.pools, candidate.instances, strict=True)
        ),
        routing=deployment.routing,
        decode_routing=deployment.decode_routing,
        link=path(candidate, model, tokens=tokens, traffic=traffic),
        direct_below=traffic.direct_below if deployment.split else 0,
        scores=traffic.scores,
        tree=_tree(traffic.tree, deployment),
        timeout_s=None if workload is None else workload.timeout_s,
        abort_s=None if workload is None else workload.abort_s,
        front_s=candidate.front_s,
        front_token_s=candidate.front_token_s,
    )


def path(
    candidate: Candidate,
    model: Model,
    *,
    tokens: int,
    traffic: Traffic = USUAL,
) -> LinkSpec | None:
    """The link between the pools of a split candidate; None for a mixed one."""
    if not candidate.deployment.split:
        return None
    by_role = {
        pool.role: ready
        for pool, ready in zip(candidate.deployment.pools, candidate.instances, strict=True)
    }
    prefill, decode = by_role["prefill"], by_role["decode"]
    # Every decode rank pulls its own share; what ranks hold copies of crosses once for each.
    cost = handoff(model, decode.holding.layout, tokens)
    posted = pieces(decode.engine.name, cost.descriptors_per_block, cost.ranks)
    speed = host_speed(decode.engine)
    return link(
        prefill.gpu,
        prefill.topology,
        decode.topology,
        bytes_per_token=cost.bytes_per_token * cost.ranks,
        fixed_bytes=float(cost.fixed_bytes * cost.ranks),
        descriptors_per_block=posted.per_block,
        descriptors=posted.per_request,
        hop=speed.hop,
        hop_across=speed.hop_across,
        receiver=decode.gpu,
        gpus=candidate.deployment.gpus,
        bandwidth=traffic.transfer_bandwidth,
        machine_ports=traffic.transfer_ports,
        layerwise=traffic.layerwise,
        # Its prefill side waits until the decode side has sent where the KV will go
        # (disaggregation/prefill.py, PrefillBootstrapQueue; decode.py, DecodePreallocQueue).
        reserve_first=decode.engine.name == "sglang",
        lease_s=LEASE_S if traffic.lease_s is None else traffic.lease_s,
    )


def _reserve(engine: Engine, dp: int) -> Reserve:
    """SGLang's scheduling: less is kept free where dp ranks attend (`Reserve`)."""
    longest_first = engine.schedule_policy == "lpm"
    default = Reserve(longest_first=longest_first, mixed=engine.mixed_chunk)
    if dp == 1:
        return default
    return replace(default, first=0.3 * default.first, least=0.3 * default.least)


def _tree(tree: Tree, deployment: Deployment) -> Tree:
    """The tree of the engine's own router, where nothing else is said."""
    if tree.holder is not None:
        return tree
    own = deployment.pools[0].engine.name
    return replace(tree, holder="lightest" if own == "vllm" else "first")


def ranks_told(deployment: Deployment) -> int:
    """Ranks of an instance that vllm-router names, which is told one number for all of them; 1
    where it is told of none."""
    ranks = {pool.topology.dp for pool in deployment.pools}
    routed = sum(pool.replicas for pool in deployment.pools) > 1
    told = routed and len(ranks) == 1 and deployment.pools[0].engine.name == "vllm"
    return max(ranks) if told else 1


def rank_choice(pool: Pool, deployment: Deployment) -> RankChoice:
    """How the instances of a pool name the rank of a request, where no router does.

    SGLang's prefill side takes a request's room, a random number, modulo the ranks
    (`follow_bootstrap_room`, what `round_robin` means there too: server_args.py of 0.5.8, its
    default since; rooms are random in its routers and in Dynamo's handlers), the others what the
    recipe sets: its `--load-balance-method`, by load unless the router does not look at it.
    vLLM's front end looks at loads (DPLBAsyncMPClient in v1/engine/core_client.py; 0.26.0 and
    0.27.1 read), unless vllm-router is told of the ranks.
    """
    if pool.engine.name == "vllm" and ranks_told(deployment) > 1:
        return "router"
    if pool.engine.name == "vllm":
        return "in_flight" if version_of(pool.engine) >= COUNTS_IN_FLIGHT else "queue"
    if pool.engine.name != "sglang":
        return "router"
    if pool.role == "prefill":
        return "lot"
    routing = deployment.decode_routing if pool.role == "decode" else deployment.routing
    if routing in ("random", "round_robin"):
        return "turn"
    return "tokens" if routing == "least_kv" else "requests"


def _pool(model: Model, pool: Pool, ready: Instance, deployment: Deployment) -> PoolSpec:
    engine, layout = ready.engine, ready.holding.layout
    rule = rules(engine, ready.topology)
    assert engine.max_seqs is not None and engine.batched_tokens is not None
    sglang = engine.name == "sglang"
    return PoolSpec(
        role=pool.role,
        replicas=pool.replicas,
        dp=ready.topology.dp,
        kv_blocks=ready.holding.kv_blocks,
        # The scheduler counts a block of all dcp ranks together (vLLM 0.32 kv_cache_utils.py).
        block_tokens=layout.block_tokens * layout.dcp,
        groups=layout.groups,
        in_flight=layout.in_flight,
        max_seqs=engine.max_seqs,
        token_budget=engine.batched_tokens,
        # SGLang's decode side has no radix cache unless asked (disaggregation/decode.py of 0.5).
        prefix_caching=engine.prefix_caching and not (sglang and pool.role == "decode"),
        curve=ready.curve,
        acceptance=ready.acceptance,
        gpus=ready.topology.gpus,
        batches_in_flight=2 if rule.overlapped else 1,
        host_blocks=int(engine.host_kv_gib * GIB / ready.topology.rank_gpus) // layout.block_bytes,
        host_bandwidth=engine.host_bandwidth,
        block_bytes=layout.block_bytes,
        reserve=_reserve(engine, ready.topology.dp) if sglang else None,
        balance=engine.balance_steps if pool.role == "mixed" and not sglang else 0,
        ranks=rank_choice(pool, deployment),
        tails=rule.tails,
        nameless_first=rule.nameless_first,
        states=rule.states,
        # vLLM 0.32, config/speculative.py: use_eagle_block_drop.
        drops_block=engine.drafts > 0 and method_of(engine, model) in ("eagle3", "mtp"),
    )
