"""From a `World` and a `Trace` to the flat arrays of a run, checking both on the way."""

import math
from typing import NamedTuple

import numpy as np

from splitpoint.errors import PlanError
from splitpoint.inputs.trace import LONGEST_S, Floats, Longs, Trace
from splitpoint.native.kernel import Rows
from splitpoint.sim.chain import chain
from splitpoint.sim.draws import SHARE, lots, rates
from splitpoint.sim.names import Names, names, next_turns
from splitpoint.sim.prompts import ONCE, UNCOUNTED, WHOLE
from splitpoint.sim.ranks import CHOICES, LOOKS
from splitpoint.sim.router import NAMES_RANKS, ROUTINGS
from splitpoint.sim.seats import LISTS
from splitpoint.sim.series import WIDTH
from splitpoint.sim.state import (
    CLOCK,
    DECODE,
    ENGINE,
    FLOW,
    LANE,
    MIXED,
    NEVER,
    PICOS,
    POOL,
    PREFILL,
    RANK,
    REQUEST,
    RULES,
    SEGMENT,
    TAIL,
    TICKET,
    UNFINISHED,
    Sim,
)
from splitpoint.sim.world import PoolSpec, Reserve, World
from splitpoint.timing.curve import StepCurve
from splitpoint.timing.path import LinkSpec

ROLES = {"mixed": MIXED, "prefill": PREFILL, "decode": DECODE}
# Blocks of a rank are counted in 32 bits where a run leaves.
MOST_BLOCKS = 2**31 - 1
# Rows of the series; about 1 MB, more than any figure shows.
SERIES_ROWS = 20_000
# Tokens or steps that one request may reserve for; sums over a batch must fit 64 bits.
MOST_RESERVED = 2**24
# Moments and places of a request that it does not have before its first event.
NOT_YET = (
    "prefill_start",
    "prefill_end",
    "transfer_start",
    "transfer_end",
    "first_token",
    "end",
    "prefill_rank",
    "decode_rank",
)
# Rows written together, which a processor's second cache holds.
ROWS_AT_ONCE = 4096
# Slots of a rank's index to its prefix cache before it doubles for the first time.
FIRST_SLOTS = 4


def build(world: World, trace: Trace, seed: int, closed: bool, leaps: bool) -> Sim:
    """The state of a run before its first event."""
    split = _check_pools(world)
    _check_trace(trace)
    if seed < 0:
        raise PlanError("seed", f"{seed}", "0 or more")
    longest = world.front_s + world.front_token_s * int(trace.isl.max(initial=0))
    if longest > LONGEST_S:
        what = f"{longest:,.0f} s for the longest prompt"
        raise PlanError("world.front_token_s", what, f"{LONGEST_S:,.0f} s at most")
    n = len(trace)
    pools, windows, tables = _pools(world)
    engines, ranks = _engines(world, pools)
    lanes = _lanes(pools, ranks)
    requests = _requests(trace, world, seed)
    naming = _names(world, trace, requests)
    _bar(world, pools, windows, requests)
    tickets = 2 * n if split else n
    rules = _rules(world, trace, engines, n, closed, leaps)
    rules.nodes[0] = naming.nodes
    rules.tickets[0] = tickets
    remembered = 2 * naming.nodes if _approximate(world) else 0
    prompts = naming.nodes * int(rules[0].ranks) if rules[0].counting == ONCE else 0
    listed = np.arange(n)
    if closed:
        is_next = np.zeros(n, np.bool_)
        is_next[requests.next[requests.next >= 0]] = True
        listed = np.flatnonzero(~is_next)
    ordered = listed[np.argsort(requests.arrive[listed], kind="stable")]
    flows = n if split else 0
    reloads = tickets if pools.host.any() else 0
    rules.first_reload[0] = flows if reloads else NEVER
    link = world.link
    every = _with_tiers(pools, ranks) if reloads else ranks
    room = _room(pools, every, naming.nodes, int(rules[0].id_tokens))
    machines = int(ranks.machine.max()) + 1
    clock = _rows(CLOCK, 1)
    clock.gap[0] = 1
    # Above all names that ids give.
    clock.names[0] = naming.nodes * rules.id_tokens[0] + 1
    return Sim(
        rules=rules,
        clock=clock,
        pools=pools,
        windows=windows,
        decode=tables[0],
        context=tables[1],
        mixed=tables[2],
        joined=tables[3],
        together=tables[4],
        engines=engines,
        ranks=every,
        requests=_request_rows(requests),
        tickets=_rows(TICKET, tickets + reloads),
        tails=_rows(TAIL, tickets if pools.tail.any() else 0),
        segments=_rows(SEGMENT, room.segments),
        index=np.zeros(room.slots, np.int64),
        name_start=naming.start,
        name=naming.name,
        cover=naming.cover,
        after=naming.after,
        idle=chain(len(every), room.segments),
        places=chain(LISTS * len(ranks), tickets),
        filling=chain(2 * len(ranks) + len(lanes), tickets),
        seats=np.zeros(_seat_places(pools, ranks), np.int64),
        last_step=np.zeros(tickets, np.int64),
        seat_pos=np.zeros(tickets, np.int64),
        ring=np.zeros(_ring_places(pools, ranks), np.int64),
        busy=np.zeros(len(engines), np.int64),
        busy_key=np.zeros(len(engines), np.int64),
        busy_pos=np.zeros(len(engines), np.int64),
        waits=np.zeros(len(engines), np.int64),
        lanes=lanes,
        ticket_lane=np.zeros(tickets if len(lanes) else 0, np.int64),
        owed=np.zeros(tickets if len(lanes) else 0, np.int64),
        ordered=ordered.astype(np.int64),
        later=np.zeros(n if closed else 0, np.int64),
        later_key=requests.arrive,
        later_pos=np.zeros(n if closed else 0, np.int64),
        arrived=np.zeros(0 if (world.timeout_s, world.abort_s) == (None, None) else n, np.int64),
        leased=np.zeros(flows, np.int64),
        lease_key=np.zeros(flows, np.int64),
        flow=_rows(FLOW, flows + reloads),
        flows=np.zeros(flows + reloads, np.int64),
        flow_key=np.zeros(flows + reloads, np.int64),
        flow_pos=np.zeros(flows + reloads, np.int64),
        sources=chain(machines, flows),
        sinks=chain(machines, flows),
        reloads=chain(len(ranks), reloads),
        flow_count=np.zeros(len(ranks), np.int64),
        outward=np.zeros(machines, np.int64),
        inward=np.zeros(machines, np.int64),
        link_bytes=_link_bytes(link),
        lots=lots(seed, n) if _by_lot(world) else np.zeros((n, 4), np.int64),
        session_rank=np.full(2 * (int(requests.session.max()) + 1 if n else 0), -1, np.int64),
        scores=_scores(world),
        tree=chain(2, remembered),
        tree_rank=np.full(remembered, -1, np.int64),
        tree_size=np.zeros(2, np.int64),
        tree_sent=np.zeros(remembered * int(rules[0].ranks) * int(rules[0].lightest), np.int64),
        prompts=np.zeros(prompts, np.int64),
        rows=np.zeros((max(SERIES_ROWS, 16 * len(ranks)), WIDTH), np.int64),
        row_next=np.zeros(len(ranks), np.int64),
    )


def _rows(kind: np.dtype[np.void], count: int) -> Rows:
    return np.zeros(count, kind).view(np.recarray)


def _check_pools(world: World) -> bool:
    roles = sorted(pool.role for pool in world.pools)
    if roles not in (["mixed"], ["decode", "prefill"]):
        raise PlanError(
            "world.pools",
            f"pools with roles {roles}",
            "one mixed pool, or one prefill and one decode",
        )
    for pool in world.pools:
        _check_pool(pool)
        _check_word(f"world.pools[{pool.role}].ranks", pool.ranks, CHOICES)
    _check_word("world.routing", world.routing, ROUTINGS)
    _check_word("world.decode_routing", world.decode_routing, ROUTINGS)
    split = len(roles) == 2
    if split and world.link is None:
        raise PlanError("world.link", "a split world without a link", "give a LinkSpec")
    if world.timeout_s is not None and not 0 <= world.timeout_s <= LONGEST_S:
        raise PlanError("world.timeout_s", f"{world.timeout_s}", f"0 .. {LONGEST_S:,.0f} s")
    for record, where in ((world.scores, "world.scores"), (world.tree, "world.tree")):
        for name in record.__struct_fields__:
            value = getattr(record, name)
            if value is None or isinstance(value, str):
                continue
            if not (math.isfinite(value) and value >= 0):
                raise PlanError(f"{where}.{name}", f"{value}", "a finite number, 0 or more")
    for name in ("front_s", "front_token_s"):
        if not 0 <= getattr(world, name) <= LONGEST_S:
            value = getattr(world, name)
            raise PlanError(f"world.{name}", f"{value}", f"0 .. {LONGEST_S:,.0f} s")
    if world.abort_s is not None and not 0 <= world.abort_s <= LONGEST_S:
        raise PlanError("world.abort_s", f"{world.abort_s}", f"0 .. {LONGEST_S:,.0f} s")
    return split


def _check_word(where: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise PlanError(where, f"{word!r}", f"one of {', '.join(known)}")


def _check_pool(pool: PoolSpec) -> None:
    where = f"world.pools[{pool.role}]"
    least = {
        "replicas": pool.replicas,
        "dp": pool.dp,
        "block_tokens": pool.block_tokens,
        "max_seqs": pool.max_seqs,
        "token_budget": pool.token_budget,
    }
    for name, value in least.items():
        if value < 1:
            raise PlanError(f"{where}.{name}", f"{value}", "at least 1")
    if pool.kv_blocks < 0 or pool.in_flight < 0:
        raise PlanError(where, "negative kv_blocks or in_flight", "at least 0")
    if pool.kv_blocks > MOST_BLOCKS:
        raise PlanError(f"{where}.kv_blocks", f"{pool.kv_blocks:,}", f"at most {MOST_BLOCKS:,}")
    if pool.batches_in_flight not in (1, 2):
        raise PlanError(f"{where}.batches_in_flight", f"{pool.batches_in_flight}", "1 or 2")
    if pool.host_blocks < 0:
        raise PlanError(f"{where}.host_blocks", f"{pool.host_blocks}", "at least 0")
    if pool.host_blocks and not (
        math.isfinite(pool.host_bandwidth) and pool.host_bandwidth > 0 and pool.block_bytes > 0
    ):
        raise PlanError(
            f"{where}.host_bandwidth",
            f"{pool.block_bytes} bytes a block at {pool.host_bandwidth} bytes per second",
            "positive numbers",
        )
    if pool.reserve is not None:
        _check_reserve(pool.reserve, f"{where}.reserve")
    if not pool.groups:
        raise PlanError(f"{where}.groups", "no groups", "at least one group of layers")
    drafts = pool.curve.drafts
    if pool.token_budget < 1 + drafts:
        raise PlanError(
            f"{where}.token_budget",
            f"{pool.token_budget} tokens",
            f"one request needs {1 + drafts}",
        )
    if _aligned(pool) and pool.token_budget < pool.block_tokens:
        raise PlanError(
            f"{where}.token_budget",
            f"{pool.token_budget} tokens, below the block of {pool.block_tokens}",
            "prefix caching of a hybrid computes whole blocks: raise batched_tokens or turn it off",
        )
    for i, stage in enumerate(pool.curve.stages):
        _check_curve(pool, stage, f"{where}.curve" + (f".later[{i - 1}]" if i else ""))
    if any(not 0 <= chance <= 1 for chance in pool.acceptance):
        raise PlanError(f"{where}.acceptance", f"{pool.acceptance}", "chances, 0 .. 1")


def _check_curve(pool: PoolSpec, curve: StepCurve, where: str) -> None:
    seats, budget = _seats(pool), pool.token_budget
    for name, table, need in (
        ("decode", curve.decode, seats),
        ("decode_context", curve.decode_context, seats),
        ("mixed", curve.mixed, budget),
        ("mixed_decode", _joined(pool, curve), seats),
        ("together", _together(pool, curve), budget),
    ):
        if len(table) <= need:
            raise PlanError(f"{where}.{name}", f"{len(table)} entries", f"0 .. {need} are needed")
        if int(table.min()) < 0:
            raise PlanError(f"{where}.{name}", "a negative time", "picoseconds, 0 or more")
    if not (curve.decode[1 : seats + 1].all() and curve.mixed[1:].all()):
        # Without time between steps a request that is preempted for want of blocks under way
        # would come back for ever at one moment.
        raise PlanError(where, "a step that takes no time", "at least 1 picosecond")
    if (_together(pool, curve)[1 : budget + 1] >= curve.mixed[1 : budget + 1]).any():
        raise PlanError(f"{where}.together", "as long as the whole step", "a part of `mixed`")
    if curve.drafts != pool.curve.drafts:
        raise PlanError(f"{where}.drafts", f"{curve.drafts}", f"{pool.curve.drafts} in all stages")


def _check_reserve(reserve: Reserve, where: str) -> None:
    if not 0 <= reserve.least <= reserve.first <= 1:
        what = f"shares {reserve.first} falling to {reserve.least}"
        raise PlanError(where, what, "0 <= least <= first <= 1")
    for name, low in (("fall_steps", 1), ("horizon", 1), ("retract_steps", 0), ("remote", 0)):
        value = getattr(reserve, name)
        if not low <= value <= MOST_RESERVED:
            raise PlanError(f"{where}.{name}", f"{value}", f"{low} .. {MOST_RESERVED:,}")


def _check_trace(trace: Trace) -> None:
    for name, column, low in (("isl", trace.isl, 1), ("osl", trace.osl, 1)):
        bad = np.flatnonzero(column < low)
        if len(bad):
            raise PlanError(
                f"trace.{name}[{bad[0]}]", f"{column[bad[0]]} tokens", f"at least {low}"
            )
    for name, times in (("arrive_s", trace.arrive_s), ("think_s", trace.think_s)):
        bad = np.flatnonzero(~((times >= 0) & (times <= LONGEST_S)))
        if len(bad):
            raise PlanError(
                f"trace.{name}[{bad[0]}]", f"{times[bad[0]]}", f"0 .. {LONGEST_S:,.0f} s"
            )


def _aligned(pool: PoolSpec) -> bool:
    return pool.prefix_caching and any(group.kind == "state" for group in pool.groups)


def _keeps_tails(pool: PoolSpec) -> bool:
    """Whether what its window groups keep decides about hits too: groups of one window that is more
    than the token itself, with nothing but full groups beside them."""
    windows = {group.window for group in pool.groups if group.kind == "window"}
    return (
        pool.tails
        and pool.prefix_caching
        and pool.reserve is None
        and pool.host_blocks == 0
        and {group.kind for group in pool.groups} == {"full", "window"}
        and len(windows) == 1
        and min(windows) > 1
    )


def _keeps_states(pool: PoolSpec) -> bool:
    """Whether the states that a hybrid keeps decide about hits: with full groups alone beside them,
    vLLM's scheduler, and no host memory."""
    return (
        pool.states
        and pool.prefix_caching
        and pool.reserve is None
        and pool.host_blocks == 0
        and {group.kind for group in pool.groups} == {"full", "state"}
    )


def _keep_states(row: Rows, pool: PoolSpec) -> None:
    """A state group is like a window of two tokens: the column of the token before is read, that of
    the new one written. `fixed` counts both, and few chunks need both."""
    states = [group.fixed for group in pool.groups if group.kind == "state"]
    row.fixed = sum(max(1, fixed - 1) for fixed in states)
    row.hybrid = 0
    row.states = row.wide = len(states)
    row.window = 2
    row.tail = 1
    row.dense = not pool.tails
    row.junctions = pool.tails or pool.nameless_first
    # vLLM drops the last block of a hit where a head drafts (`use_eagle_block_drop`).
    row.drops = pool.drops_block and pool.curve.drafts > 0


def _nameless_first(pool: PoolSpec) -> bool:
    """Whether blocks without a name go to the front of the queue in a pool of full groups, and of
    states that are kept."""
    known = _keeps_states(pool) or all(group.kind == "full" for group in pool.groups)
    first = pool.nameless_first or (pool.tails and _keeps_states(pool))
    return first and pool.prefix_caching and pool.reserve is None and known


def _seats(pool: PoolSpec) -> int:
    """Sequences a step can hold: a decode takes 1 + drafts tokens of the budget."""
    return min(pool.max_seqs, pool.token_budget // (1 + pool.curve.drafts))


def _joined(pool: PoolSpec, curve: StepCurve) -> Longs:
    """What decodes add to a mixed step: nothing, where the curve does not say."""
    table = curve.mixed_decode
    return np.zeros(_seats(pool) + 1, np.int64) if table is None else table


def _together(pool: PoolSpec, curve: StepCurve) -> Longs:
    """What the dp ranks do together: nothing, where the curve does not say."""
    shared = curve.together
    return np.zeros(pool.token_budget + 1, np.int64) if shared is None else shared.work


def _pools(world: World) -> tuple[Rows, Longs, tuple[Longs, ...]]:
    rows = _rows(POOL, sum(len(pool.curve.stages) for pool in world.pools))
    later = len(world.pools)
    windows: list[int] = []
    tables: tuple[list[Longs], ...] = ([], [], [], [], [])
    for i, pool in enumerate(_ordered(world)):
        row = rows[i]
        curve = pool.curve
        sliding = [g.window for g in pool.groups if g.kind in ("window", "chunk")]
        row.role = ROLES[pool.role]
        row.block = pool.block_tokens
        row.full = sum(g.kind == "full" for g in pool.groups)
        row.fixed = sum(g.fixed for g in pool.groups if g.kind == "state")
        row.slides = _keeps_tails(pool)
        row.drafts = curve.drafts
        row.seats = _seats(pool)
        row.budget = pool.token_budget
        row.counts = pool.prefix_caching
        row.caching = row.recalls = pool.prefix_caching and row.full > 0
        row.hybrid = any(g.kind == "state" for g in pool.groups)
        if _keeps_states(pool):
            _keep_states(row, pool)
        row.aligned = _aligned(pool)
        row.plain = curve.drafts == 0 and not sliding
        row.ahead = pool.batches_in_flight - 1
        row.usable = max(0, pool.kv_blocks - 1)
        row.in_flight = max(pool.in_flight, pool.token_budget)
        row.windows = len(sliding)
        if _keeps_tails(pool):
            row.window = max(sliding)
            row.tail = -(-(row.window - 1) // pool.block_tokens)
            row.wide = row.windows
            row.junctions = 1
        row.nameless = row.slides or _nameless_first(pool)
        reserve = pool.reserve
        if reserve is not None:
            row.reserving = 1
            row.leaves = row.nameless = row.caching
            row.share_first = round(reserve.first * SHARE)
            row.share_least = round(reserve.least * SHARE)
            row.share_fall = round((reserve.first - reserve.least) / reserve.fall_steps * SHARE)
            row.horizon = reserve.horizon
            row.retract_steps = reserve.retract_steps
            row.parks = pool.role == "decode"
            row.longest_first = reserve.longest_first and row.caching and pool.role != "decode"
            row.mixes = reserve.mixed and curve.drafts == 0 and not curve.later
            row.remote_reserve = row.full * -(-reserve.remote // pool.block_tokens)
        if pool.host_blocks and row.caching:
            row.host = pool.host_blocks
            row.reload = math.ceil(row.full * pool.block_bytes / pool.host_bandwidth * PICOS)
        row.window_at = len(windows)
        row.balance = pool.balance if pool.dp > 1 else 0
        row.width = 1 if _names_ranks(world, pool) else pool.dp
        row.choice = CHOICES.index(pool.ranks)
        row.looks = LOOKS[row.choice]
        windows += sliding
        row.stages = len(curve.stages)
        row.later = later
        _stage(row, pool, curve, tables)
        for stage in curve.later:
            _stage(rows[later], pool, stage, tables)
            later += 1
    joined = tuple(np.concatenate(t).astype(np.int64) for t in tables)
    return rows, np.array([*windows, 0], np.int64), joined


def _stage(row: Rows, pool: PoolSpec, curve: StepCurve, tables: tuple[list[Longs], ...]) -> None:
    """Put the times of a stage into the tables, and where they stand into its row."""
    row.decode_at = sum(map(len, tables[0]))
    row.mixed_at = sum(map(len, tables[2]))
    if curve.together is not None and pool.dp > 1:
        row.sharing = 1
        row.padded = curve.together.padded
        row.least = curve.together.least
    row.pair = curve.prefill_pair
    row.prefix = curve.prefill_prefix
    seats = _seats(pool)
    tables[0].append(curve.decode[: seats + 1])
    tables[1].append(curve.decode_context[: seats + 1])
    tables[2].append(curve.mixed[: pool.token_budget + 1])
    tables[3].append(_joined(pool, curve)[: seats + 1])
    tables[4].append(_together(pool, curve)[: pool.token_budget + 1])


def _ordered(world: World) -> tuple[PoolSpec, ...]:
    """Prefill before decode: engines below `first_sink` are sources of transfers."""
    return tuple(sorted(world.pools, key=lambda pool: pool.role != "prefill"))


def _engines(world: World, pools: Rows) -> tuple[Rows, Rows]:
    specs = _ordered(world)
    engines = _rows(ENGINE, sum(pool.replicas for pool in specs))
    ranks = _rows(RANK, sum(pool.replicas * pool.dp for pool in specs))
    shared = world.link.shared if world.link is not None else None
    e = r = seats_at = ring_at = gpus = 0
    for p, pool in enumerate(specs):
        for _ in range(pool.replicas):
            engines[e].pool = p
            engines[e].first = r
            engines[e].ranks = pool.dp
            engines[e].lasts = -1
            for i in range(pool.dp):
                rank = ranks[r]
                rank.engine = e
                rank.pool = p
                first = gpus + i * pool.gpus // pool.dp
                rank.machine = r if shared is None else first // shared.gpus
                rank.free = rank.tail = pools[p].usable
                rank.seats_at = seats_at
                rank.ring_at = ring_at
                rank.row_time = -1
                rank.share = pools[p].share_first
                rank.dirty = 1
                seats_at += pools[p].seats
                ring_at += pools[p].block
                r += 1
            gpus += pool.gpus
            e += 1
    return engines, ranks


def _with_tiers(pools: Rows, ranks: Rows) -> Rows:
    """The ranks, and behind them the host-memory tier of each: a pool in which nothing runs."""
    rows = _rows(RANK, 2 * len(ranks))
    rows[: len(ranks)] = ranks
    tiers = rows[len(ranks) :].view(np.recarray)
    tiers.pool[:] = ranks.pool
    tiers.engine[:] = ranks.engine
    tiers.free[:] = tiers.tail[:] = pools.host[ranks.pool]
    return rows


def _lanes(pools: Rows, ranks: Rows) -> Rows:
    """The lanes of all pipelines, a rank's one after the other; tells ranks where theirs begin."""
    depth = pools.stages[ranks.pool] * (pools.stages[ranks.pool] > 1)
    rows = _rows(LANE, int(depth.sum()))
    seats_at = int(ranks[-1].seats_at + pools[ranks[-1].pool].seats)
    ring_at = int(ranks[-1].ring_at + pools[ranks[-1].pool].block)
    ranks.lane_at[:] = np.cumsum(depth) - depth
    for rank, lanes in zip(ranks, depth, strict=True):
        pool = pools[rank.pool]
        # An engine is turned to its first lane at first: that one's places are the rank's own.
        for row in rows[rank.lane_at + 1 : rank.lane_at + lanes]:
            row.seats_at = seats_at
            row.ring_at = ring_at
            seats_at += pool.seats
            ring_at += pool.block
    return rows


def _seat_places(pools: Rows, ranks: Rows) -> int:
    return int((pools.seats * pools.stages)[ranks.pool].sum())


def _ring_places(pools: Rows, ranks: Rows) -> int:
    return int((pools.block * pools.stages)[ranks.pool].sum())


def _picos(seconds: Floats) -> Longs:
    return np.rint(np.asarray(seconds, np.float64) * PICOS).astype(np.int64)


def front(world: World, trace: Trace) -> Longs:
    """Picoseconds of each request between its client and the router."""
    token = round(world.front_token_s * PICOS)
    return round(world.front_s * PICOS) + token * trace.isl.astype(np.int64)


class _Requests(NamedTuple):
    """The columns of requests that differ before the first event."""

    isl: Longs
    osl: Longs
    think: Longs
    next: Longs
    session: Longs
    rate: Longs
    arrive: Longs
    barred: Longs


def _requests(trace: Trace, world: World, seed: int) -> _Requests:
    before = front(world, trace)
    osl = trace.osl.astype(np.int64)
    decoder = _ordered(world)[-1]
    return _Requests(
        isl=trace.isl.astype(np.int64),
        osl=osl,
        think=_picos(trace.think_s) + before,
        next=next_turns(trace.session, trace.turn),
        session=_numbered(trace.session.astype(np.int64)),
        rate=rates(seed, osl - 1, decoder.curve.drafts, decoder.acceptance),
        arrive=_picos(trace.arrive_s) + before,
        barred=np.zeros(len(trace), np.int64),
    )


def _numbered(session: Longs) -> Longs:
    """Session numbers from 0 on, not much above their count."""
    if len(session) == 0 or (session.min() >= 0 and session.max() < 2 * len(session)):
        return session
    return np.unique(session, return_inverse=True)[1]


def _request_rows(columns: _Requests) -> Rows:
    """The rows of requests that have not arrived, written a few at a time: field by field every
    row would be fetched from memory again for each."""
    names = REQUEST.names or ()
    first = np.zeros(1, REQUEST).view(np.recarray)
    first.arrive = -1
    first.outcome = UNFINISHED
    for name in NOT_YET:
        first[name] = -1
    rows = np.empty(len(columns.isl), REQUEST)
    fields = rows.view(np.int64).reshape(len(rows), len(names))
    places = {names.index(name): getattr(columns, name) for name in columns._fields}
    del places[names.index("arrive")]
    for at in range(0, len(rows), ROWS_AT_ONCE):
        part = fields[at : at + ROWS_AT_ONCE]
        part[:] = first.view(np.int64)
        for place, column in places.items():
            part[:, place] = column[at : at + ROWS_AT_ONCE]
    return rows.view(np.recarray)


def _names(world: World, trace: Trace, requests: _Requests) -> Names:
    n = len(trace)
    told = _approximate(world) or _counting(world) == ONCE
    wanted = told or any(pool.prefix_caching for pool in world.pools)
    if not wanted or len(trace.block_ids) == 0:
        none = np.zeros(n, np.int64)
        return Names(none, np.zeros(1, np.int64), none, np.full(n, -1, np.int64), 0)
    return names(
        trace.block_starts.astype(np.int64),
        trace.block_ids,
        trace.block_tokens,
        requests.isl,
        requests.osl,
        requests.next,
    )


def _approximate(world: World) -> bool:
    """Whether a router remembers which prompts it sent where."""
    return "prefix_approx" in (world.routing, world.decode_routing)


def _by_lot(world: World) -> bool:
    """Whether a router, or an instance, chooses by lot."""
    routings = (world.routing, world.decode_routing)
    drawing = {"random", "power_of_two", "prefix_aware"}
    lots = any(pool.ranks == "lot" for pool in world.pools)
    return lots or not drawing.isdisjoint(routings)


def _names_ranks(world: World, pool: PoolSpec) -> bool:
    """Whether a router, and not its instances, names the ranks of a pool."""
    routing = world.decode_routing if pool.role == "decode" else world.routing
    return pool.dp == 1 or pool.ranks == "router" or routing in NAMES_RANKS


def _counting(world: World) -> int:
    """How a router counts prompts of ranks."""
    if len(world.pools) == 1:
        return ONCE if world.routing == "prefix_aware" else UNCOUNTED
    return WHOLE if world.decode_routing == "prefix_aware" else UNCOUNTED


def _scores(world: World) -> Floats:
    scores, tree = world.scores, world.tree
    return np.array(
        [scores.cache_weight, scores.load_weight, tree.cache_threshold, tree.balance_rel],
        np.float64,
    )


def _bar(world: World, pools: Rows, windows: Longs, requests: _Requests) -> None:
    """Mark requests that no rank can hold: bit 1 where they decode, bit 2 where they prefill.

    The bound covers admission (whole input with `in_flight` tokens in window groups), the
    largest chunk, and the last step's drafts, so whatever passes can always be admitted alone.
    """
    specs = _ordered(world)
    for p, spec in enumerate(specs):
        pool = pools[p]
        prefill = spec.role == "prefill"
        new = max(spec.in_flight, spec.token_budget)
        last = requests.isl + (0 if prefill else requests.osl - 1) + 2 * spec.curve.drafts
        columns = -(-last // spec.block_tokens)
        blocks = pool.full * columns + pool.fixed + pool.states
        for window in windows[pool.window_at : pool.window_at + pool.windows]:
            cap = -(-(window - 1 + new) // spec.block_tokens) + 1
            blocks = blocks + np.minimum(columns, cap)
        requests.barred[blocks > pools[p].usable] |= 2 if prefill else 1
    link = world.link
    if link is not None and not (link.bandwidth > 0 and math.isfinite(link.bandwidth)):
        requests.barred[:] |= 2


def _rules(world: World, trace: Trace, engines: Rows, n: int, closed: bool, leaps: bool) -> Rows:
    rows = _rows(RULES, 1)
    rules = rows[0]
    rules.requests = n
    rules.ranks = int(engines.ranks.sum())
    rules.split = len(world.pools) == 2
    rules.routing = ROUTINGS.index(world.routing)
    rules.decode_routing = ROUTINGS.index(world.decode_routing)
    rules.direct_below = min(world.direct_below, NEVER)
    rules.timeout = -1 if world.timeout_s is None else round(world.timeout_s * PICOS)
    rules.abort = -1 if world.abort_s is None else round(world.abort_s * PICOS)
    rules.counting = _counting(world)
    rules.lightest = world.tree.holder == "lightest"
    rules.balance_abs = world.tree.balance_abs
    lost = world.tree.lost_s
    rules.tree_lost = NEVER if lost is None else round(min(lost, LONGEST_S) * PICOS)
    rules.tree_ids = world.tree.tokens // max(1, trace.block_tokens)
    rules.closed = closed
    rules.leaps = leaps
    rules.id_tokens = max(1, trace.block_tokens)
    rules.first_sink = int(np.count_nonzero(engines.pool == 0)) if rules.split else len(engines)
    link = world.link
    if link is not None:
        for name in ("latency", "per_descriptor", "lease_s", "bytes_per_token", "fixed_bytes"):
            value = getattr(link, name)
            if not (math.isfinite(value) and value >= 0):
                raise PlanError(f"world.link.{name}", f"{value}", "a finite number, 0 or more")
        for name in ("latency", "per_descriptor"):
            if getattr(link, name) > LONGEST_S:
                what = f"{getattr(link, name)}"
                raise PlanError(f"world.link.{name}", what, f"0 .. {LONGEST_S:,.0f} s")
        if link.bandwidth == math.inf:
            raise PlanError("world.link.bandwidth", "inf", "a finite number")
        if link.shared is not None:
            for name in link.shared.__struct_fields__:
                value = getattr(link.shared, name)
                if value < 1:
                    raise PlanError(f"world.link.shared.{name}", f"{value}", "at least 1")
            rules.ports, rules.width = link.shared.ports, link.shared.width
        rules.layerwise = link.layerwise
        rules.reserve_first = link.reserve_first
        rules.latency = round(link.latency * PICOS)
        rules.per_descriptor = round(link.per_descriptor * PICOS)
        rules.lease = min(round(link.lease_s * PICOS), NEVER // 4)
    return rows


def _link_bytes(link: LinkSpec | None) -> Floats:
    if link is None:
        return np.zeros(4)
    return np.array(
        [link.bytes_per_token, link.fixed_bytes, link.bandwidth, link.descriptors_per_block],
        np.float64,
    )


class _Room(NamedTuple):
    """Sizes of the prefix caches' arrays over all ranks."""

    segments: int
    slots: int


def _room(pools: Rows, ranks: Rows, nodes: int, id_tokens: int) -> _Room:
    """Place for as many segments as a rank can hold named blocks, and an index to find them.

    Arrays of zeros cost nothing where they are never touched, and few ranks hold many segments.
    """
    segments, slots = 1, 0
    for rank in ranks:
        pool = pools[rank.pool]
        if nodes == 0:
            pool.caching = 0
        pool.span = -(-id_tokens // pool.block)
        most = int(rank.free) // max(1, int(pool.full)) if pool.recalls else 0
        if pool.tail:
            # Every named block may stand alone: a column of a full group, or of a window group.
            most = int(rank.free)
        width = 1 << (2 * most).bit_length()
        rank.segment_at = rank.segment_next = segments
        rank.index_at = slots
        rank.index_mask = min(width, FIRST_SLOTS) - 1
        segments += most
        slots += width
    return _Room(segments, slots)
