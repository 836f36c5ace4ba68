"""Random small worlds, tight enough that everything happens: preemption, eviction, back-pressure,
full seats, time-outs, hits across turns and sessions."""

from random import Random
from typing import get_args

import numpy as np
from msgspec.structs import replace

from splitpoint.inputs.routing import Role, Routing, Scores, Tree
from splitpoint.inputs.trace import Trace
from splitpoint.pricing.layout import Group
from splitpoint.sim import PoolSpec, World
from splitpoint.sim.world import RankChoice, Reserve
from splitpoint.timing.curve import StepCurve, Together
from splitpoint.timing.path import LinkSpec, SharedPorts

ROUTINGS: tuple[Routing, ...] = get_args(Routing)
RANKS: tuple[RankChoice, ...] = get_args(RankChoice)
Table = np.ndarray[tuple[int], np.dtype[np.int64]]


def together(random: Random, mixed: Table, unit: int) -> Together | None:
    """Nothing, or parts of the steps with prefill, some padded and some bound by launches."""
    if random.random() < 0.3:
        return None
    return Together(
        work=np.array([random.randrange(max(int(step), 1)) for step in mixed], np.int64),
        padded=random.choice([0, 0, random.randint(1, 20)]),
        least=random.choice([0, 0, random.randint(1, 5000) * unit]),
    )


def curve(random: Random, seats: int, budget: int, drafts: int, dp: int) -> StepCurve:
    """Step times of no regular shape, microseconds apart, so that ties are rare but happen."""
    unit = random.choice([1, 1_000, 1_000_000])

    def table(length: int, low: int, high: int) -> Table:
        return np.array([random.randint(low, high) * unit for _ in range(length)], np.int64)

    made = StepCurve(
        decode=table(seats + 1, 1, 3000),
        decode_context=table(seats + 1, 0, 5),
        mixed=table(budget + 1, 1, 5000),
        prefill_pair=random.randint(0, 3) * unit,
        prefill_prefix=random.choice([0, random.randint(0, 9) * unit]),
        mixed_decode=random.choice([None, table(seats + 1, 0, 500)]),
        drafts=drafts,
    )
    # Drawn only for ranks: more draws would make other worlds of known seeds.
    return made if dp == 1 else replace(made, together=together(random, made.mixed, unit))


def groups(random: Random) -> tuple[Group, ...]:
    """Plain, hybrid, sliding and mixed layouts."""
    kind = random.choice(["plain", "plain", "plain", "two", "hybrid", "window", "all", "local"])
    full = Group(kind="full", layers=1)
    window = Group(kind="window", layers=1, window=random.randint(1, 20))
    state = Group(kind="state", layers=1, fixed=random.randint(1, 3))
    return {
        "plain": (full,),
        "two": (full, full),
        "hybrid": (full, state, state),
        "window": (full, window),
        "all": (full, full, window, state),
        "local": (window, Group(kind="chunk", layers=1, window=random.randint(1, 20))),
    }[kind]


def pool(random: Random, role: Role, layout: tuple[Group, ...], block: int) -> PoolSpec:
    """One pool, often too small for the load."""
    drafts = random.choice([0, 0, 0, 1, 3]) if role != "prefill" else 0
    seats = random.randint(1, 8)
    budget = random.randint(max(block, seats * (1 + drafts)), 60)
    host = random.choice([0, 0, random.randint(1, 100)])
    replicas, dp = random.randint(1, 3), random.choice([1, 1, 1, 2, 3])
    made = PoolSpec(
        role=role,
        replicas=replicas,
        dp=dp,
        gpus=dp,
        kv_blocks=random.randint(6, 60),
        block_tokens=block,
        groups=layout,
        in_flight=random.choice([0, budget, 2 * budget]),
        max_seqs=seats,
        token_budget=budget,
        prefix_caching=random.random() < 0.6,
        curve=curve(random, seats, budget, drafts, dp),
        acceptance=tuple(random.choice([0.0, 0.3, 0.8, 1.0]) for _ in range(drafts)),
        batches_in_flight=random.choice([1, 2]),
        reserve=reserve(random) if random.random() < 0.3 else None,
        host_blocks=host,
        host_bandwidth=random.choice([1e6, 1e9]),
        block_bytes=random.choice([1, 1000]),
        # As `front` below: no draw of its own.
        ranks=RANKS[budget % len(RANKS)],
        nameless_first=budget % 3 > 0,
    )
    return piped(made)


def piped(pool: PoolSpec) -> PoolSpec:
    """The pool, often as a pipeline of stages of unequal speed."""
    seats, budget, curves = pool.max_seqs, pool.token_budget, pool.curve
    # From a source of its own: more draws would make other worlds of known seeds.
    random = Random(f"{seats} {budget} {curves.decode.sum()}")
    if random.random() < 0.4:
        return pool
    stages = [
        curve(random, seats, budget, curves.drafts, pool.dp) for _ in range(random.randint(1, 3))
    ]
    return replace(pool, curve=replace(curves, later=tuple(stages)))


def world(random: Random) -> World:
    """Mixed or split, every router, every option."""
    layout = groups(random)
    block = random.choice([1, 2, 3, 4, 8, 16])
    timeout = random.choice([None, None, random.randint(1, 40_000) * 1e-6, 1e-9])
    abort = random.choice([None, None, random.randint(1, 100_000) * 1e-6, 1e-9])
    routing = random.choice(ROUTINGS)
    decode_routing = random.choice(ROUTINGS)
    # Drawn from what is drawn already: more draws would make other worlds of known seeds.
    front = 3e-6 if block in (3, 16) else 0.0
    token = 1e-7 if routing in ("random", "session", "least_kv") else 0.0
    if random.random() < 0.5:
        pools: tuple[PoolSpec, ...] = (pool(random, "mixed", layout, block),)
        return World(
            pools=pools,
            routing=routing,
            timeout_s=timeout,
            abort_s=abort,
            front_s=front,
            front_token_s=token,
            scores=scores(random),
            tree=tree(random),
        )
    link = LinkSpec(
        bandwidth=random.choice([1e3, 1e6, 1e9]),
        latency=random.choice([0.0, 1e-6, 1e-3]),
        bytes_per_token=random.choice([0.0, 1.0, 10.5]),
        fixed_bytes=random.choice([0.0, 7.0]),
        per_descriptor=random.choice([0.0, 1e-7]),
        descriptors_per_block=random.choice([0.0, 2.0]),
        layerwise=random.random() < 0.3,
        reserve_first=random.random() < 0.3,
        lease_s=random.choice([0.0, 1e-3, 0.05]),
        # Drawn already, as the front is.
        shared=SharedPorts(gpus=block, ports=block // 2, width=1 + (token > 0))
        if block in (2, 4)
        else None,
    )
    pools = (pool(random, "prefill", layout, block), pool(random, "decode", layout, block))
    if random.random() < 0.3:
        pools = pools[::-1]
    return World(
        pools=pools,
        routing=routing,
        decode_routing=decode_routing,
        link=link,
        direct_below=random.choice([0, 0, 5, 40]),
        timeout_s=timeout,
        abort_s=abort,
        front_s=front,
        front_token_s=token,
        scores=scores(random),
        tree=tree(random),
    )


def case(random: Random) -> tuple[World, Trace]:
    """A world and a trace; some of them prompts that return when a small pool forgot them, some
    with outputs that outgrow the pool."""
    if random.random() < 0.4:
        return world(random), trace(random)
    if random.random() < 0.3:
        return crowded(random)
    requests = returning(random)
    made = world(random)
    block = made.pools[0].block_tokens
    longest = int((requests.isl + requests.osl).max()) // block + 2
    pools = tuple(
        replace(
            pool,
            kv_blocks=random.randint(2, 4) * longest * len(pool.groups) // 2 + 4,
            host_blocks=random.choice([0, longest, 10 * longest, 100 * longest]),
            prefix_caching=random.random() < 0.9,
        )
        for pool in made.pools
    )
    return replace(made, pools=pools), requests


def windowed(random: Random) -> tuple[World, Trace]:
    """Prompts that return to pools of full and window groups that keep tails, most of them full."""
    make = random.choice([returning, returning, trace])
    requests = make(random)
    if random.random() < 0.3:
        made, requests = crowded(random)
    else:
        made = world(random)
    block = made.pools[0].block_tokens
    full = Group(kind="full", layers=1)
    window = Group(kind="window", layers=1, window=random.choice([5, random.randint(1, 40)]))
    layout = (*[window] * random.choice([1, 1, 2, 4]), *[full] * random.choice([1, 1, 2]))
    longest = int((requests.isl + requests.osl).max()) // block + 2
    pools = []
    for pool in made.pools:
        new = max(pool.in_flight, pool.token_budget)
        each = [-(-(g.window - 1 + new) // block) + 1 if g.window else longest for g in layout]
        least = sum(min(longest, columns) for columns in each)
        pools.append(
            replace(
                pool,
                groups=layout,
                kv_blocks=int(random.choice([1.0, 1.5, 2.0, 5.0]) * least) + 2,
                prefix_caching=True,
                reserve=None,
                host_blocks=0,
                tails=True,
            )
        )
    return replace(made, pools=tuple(pools)), requests


def stateful(random: Random) -> tuple[World, Trace]:
    """Prompts that return to hybrids that keep states, of either era, most of their pools full."""
    make = random.choice([returning, returning, trace])
    requests = make(random)
    if random.random() < 0.3:
        made, requests = crowded(random)
    else:
        made = world(random)
    block = made.pools[0].block_tokens
    full = Group(kind="full", layers=1)
    state = Group(kind="state", layers=1, fixed=random.randint(1, 3))
    layout = (*[state] * random.choice([1, 1, 3]), *[full] * random.choice([1, 1, 2]))
    longest = int((requests.isl + requests.osl).max()) // block + 2
    least = sum(g.fixed or longest for g in layout) + 3
    pools = tuple(
        replace(
            pool,
            groups=layout,
            kv_blocks=int(random.choice([1.0, 1.5, 2.0, 5.0]) * least) + 2,
            prefix_caching=True,
            reserve=None,
            host_blocks=0,
            tails=random.random() < 0.6,
            states=True,
            drops_block=random.random() < 0.5,
        )
        for pool in made.pools
    )
    return replace(made, pools=pools), requests


def crowded(random: Random) -> tuple[World, Trace]:
    """Short prompts and long outputs in pools that hold two or three of them at their ends."""
    made = world(random)
    n = random.randint(3, 12)
    osl = [random.choice([20, random.randint(1, 60)]) for _ in range(n)]
    arrive = np.cumsum([random.choice([0.0, 0.0, 1e-9, 1e-6]) for _ in range(n)])
    isl = [random.randint(1, 20) for _ in range(n)]
    # Names in every other world, of three prompts: more draws would change worlds of known seeds.
    ids = [[100 * (i % 3) + j for j in range(-(-isl[i] // 4))] if n % 2 else [] for i in range(n)]
    requests = Trace(
        name="crowded",
        arrive_s=arrive,
        isl=np.array(isl, np.int32),
        osl=np.array(osl, np.int32),
        session=np.arange(n, dtype=np.int32),
        turn=np.zeros(n, np.int32),
        think_s=np.zeros(n),
        block_starts=np.cumsum([0, *map(len, ids)]).astype(np.int64),
        block_ids=np.array([name for row in ids for name in row], np.int32),
        block_tokens=4,
    )
    columns = int((requests.isl + requests.osl).max()) // made.pools[0].block_tokens + 2
    tight = random.choice([1.0, 1.5, 2.5])
    pools = tuple(
        replace(
            pool,
            replicas=1,
            kv_blocks=int(tight * sum(g.fixed or columns for g in pool.groups)) + 2,
            in_flight=0,
            # Admission that looks one token ahead, so that decodes must give way.
            reserve=replace(pool.reserve, horizon=1) if pool.reserve else None,
        )
        for pool in made.pools
    )
    return replace(made, pools=pools), requests


def returning(random: Random) -> Trace:
    """Requests each of its own, over and over with one of a few prompts, or a part of one."""
    tokens = random.choice([1, 2, 4, 5, 16])
    prompts = [range(100 * i, 100 * i + random.randint(4, 20)) for i in range(random.randint(3, 6))]
    n = random.randint(8, 30)
    ids = [list(random.choice(prompts))[: random.choice([3, 100, 100])] for _ in range(n)]
    starts = np.cumsum([0, *map(len, ids)])
    isl = [max(1, len(some) * tokens - random.choice([0, 0, 1])) for some in ids]
    return Trace(
        name="returning",
        arrive_s=np.cumsum([random.choice([0.0, 1e-6, random.random() * 0.1]) for _ in range(n)]),
        isl=np.array(isl, np.int32),
        osl=np.array([random.choice([1, 2, random.randint(1, 20)]) for _ in range(n)], np.int32),
        session=np.arange(n, dtype=np.int32),
        turn=np.zeros(n, np.int32),
        think_s=np.zeros(n),
        block_starts=starts.astype(np.int64),
        block_ids=np.array([name for some in ids for name in some], np.int32),
        block_tokens=tokens,
    )


def reserve(random: Random) -> Reserve:
    """SGLang's scheduling, with shares that fall soon and horizons that outputs pass."""
    first = random.choice([0.0, 0.7, 1.0])
    return Reserve(
        first=first,
        least=first * random.choice([0.0, 0.14, 1.0]),
        fall_steps=random.choice([1, 5, 600]),
        horizon=random.choice([1, 10, 4096]),
        retract_steps=random.choice([0, 1, 20]),
        remote=random.choice([0, 5, 64]),
        # Drawn already: more draws would make other worlds of known seeds.
        longest_first=first < 1.0,
        mixed=first > 0.0,
    )


def scores(random: Random) -> Scores:
    """Weights, none of them included."""
    return Scores(
        cache_weight=random.choice([0.0, 1.0, 3.0]), load_weight=random.choice([0.0, 0.7, 2.0])
    )


def tree(random: Random) -> Tree:
    """Thresholds that a few requests cross, and a tree that forgets."""
    made = Tree(
        cache_threshold=random.choice([0.0, 0.3, 0.9]),
        balance_abs=random.choice([0, 1, 64]),
        balance_rel=random.choice([0.0, 1.5]),
        tokens=random.choice([0, 20, 100, 2**24]),
        lost_s=random.choice([None, 0.0, 2e-3]),
    )
    # As `front` above: no draw of its own.
    return replace(made, holder="lightest" if made.balance_abs == 1 else "first")


def trace(random: Random) -> Trace:
    """Sessions whose prompts grow by turns, shared heads, partial blocks, equal arrivals."""
    tokens = random.choice([1, 2, 4, 5, 16])
    n = random.randint(1, 14)
    named = random.random() < 0.7
    rows: list[tuple[float, int, int, int, int, float, list[int]]] = []
    fresh = iter(range(100, 100_000))
    heads = [[next(fresh) for _ in range(4)] for _ in range(2)]
    clock = 0.0
    session = 0
    while len(rows) < n:
        session += 1
        ids = list(random.choice(heads)[: random.randint(0, 4)])
        length = len(ids) * tokens
        for turn in range(random.choice([1, 1, 2, 3])):
            length += random.randint(1, 25)
            ids = ids[: length // tokens]
            while len(ids) * tokens < length:
                # An id may come again behind other ids: then it names another block.
                ids.append(random.choice(ids) if ids and random.random() < 0.05 else next(fresh))
            if random.random() < 0.1:
                ids = ids[: max(0, len(ids) - 1)]
            osl = random.choice([1, 2, random.randint(1, 40)])
            clock += random.choice([0.0, 1e-9, random.randint(0, 5_000) * 1e-6])
            think = random.choice([0.0, 1e-6, 3e-3])
            rows.append((clock, length, osl, session, turn, think if turn else 0.0, list(ids)))
            if random.random() < 0.7:
                length += osl
            if random.random() < 0.1:
                length = max(1, length // 2)
    starts = np.cumsum([0, *(len(row[6]) for row in rows)])
    flat = [name for row in rows for name in row[6]]
    return Trace(
        name="random",
        arrive_s=np.array([row[0] for row in rows]),
        isl=np.array([row[1] for row in rows], np.int32),
        osl=np.array([row[2] for row in rows], np.int32),
        session=np.array([row[3] for row in rows], np.int32),
        turn=np.array([row[4] for row in rows], np.int32),
        think_s=np.array([row[5] for row in rows]),
        block_starts=starts.astype(np.int64) if named else np.zeros(len(rows) + 1, np.int64),
        block_ids=np.array(flat if named else [], np.int32),
        block_tokens=tokens,
        closed=random.random() < 0.5,
    )
