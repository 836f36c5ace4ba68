"""Which rank a request goes to. Every data-parallel rank is a target of its own, but where the
instance names it (`PoolSpec.ranks`) and the router none.

Loads are what a router of vLLM-router, llm-d or Dynamo sees: requests assigned and not ended,
blocks in use and asked for, requests waiting, prompt tokens still to compute, and exact cache
events; `prefix_approx` knows of caches only what it sent where. Ties go to the rank with fewer
requests, then to the first, but where the router draws among equals.
"""

from typing import get_args

from splitpoint.inputs.routing import Routing
from splitpoint.native.kernel import kernel
from splitpoint.sim import chain
from splitpoint.sim.blocks import ceil_div
from splitpoint.sim.prefix import hits, matched
from splitpoint.sim.prompts import own, shared
from splitpoint.sim.ranks import rank_of, used
from splitpoint.sim.state import NEVER, Sim
from splitpoint.sim.steps import observe

ROUTINGS = get_args(Routing)
RANDOM, ROUND_ROBIN, LEAST_REQUESTS, LEAST_KV, POWER_OF_TWO = range(5)
SESSION, PREFIX_AWARE, PREFIX_APPROX, LINEAR = range(5, 9)
# What these choose by is known of ranks, so that they name one: Dynamo's KV router (pull request
# 9080 of 2026-05), llm-d's picker.
NAMES_RANKS = ("prefix_aware", "linear")


@kernel
def choose(s: Sim, q: int, side: int, first: int, count: int, now: int) -> int:
    """The rank among `first` .. `first + count - 1` that serves request `q`; `side` 1: decode."""
    width = s.pools[s.ranks[first].pool].width
    chosen = _routed(s, q, side, first, count, width, now)
    return chosen if width == 1 else rank_of(s, q, chosen, width, now)


@kernel
def _routed(s: Sim, q: int, side: int, first: int, count: int, width: int, now: int) -> int:
    """The first of the `width` ranks that are one target of the router."""
    rules = s.rules[0]
    routing = rules.decode_routing if side == 1 else rules.routing
    if routing == RANDOM:
        return int(first + s.lots[q, 2 * side] * width % count)
    if routing == ROUND_ROBIN:
        return first + _turn(s, side) * width % count
    if routing == LEAST_REQUESTS:
        return _least_requests(s, first, count, width)
    if routing == LEAST_KV:
        return _least_kv(s, first, count, width, now)
    if routing == POWER_OF_TWO:
        lot, other = s.lots[q, 2 * side], s.lots[q, 2 * side + 1]
        return _power_of_two(s, first, count // width, width, lot, other)
    if routing == SESSION:
        place = 2 * s.requests[q].session + side
        if s.session_rank[place] < 0:
            s.session_rank[place] = _least_requests(s, first, count, width)
        return int(s.session_rank[place])
    if routing == PREFIX_APPROX:
        return _prefix_approx(s, q, side, first, count, width, now)
    if routing == LINEAR:
        return _linear(s, q, first, count, now)
    return _prefix_aware(s, q, side, first, count, now)


@kernel
def _turn(s: Sim, side: int) -> int:
    clock = s.clock[0]
    if side == 1:
        clock.turn_decode += 1
        return int(clock.turn_decode - 1)
    clock.turn_prefill += 1
    return int(clock.turn_prefill - 1)


@kernel
def _load(s: Sim, r: int, width: int) -> int:
    """Requests on the target that begins with rank `r`."""
    load = 0
    for each in range(r, r + width):
        load += s.ranks[each].load
    return load


@kernel
def _least_requests(s: Sim, first: int, count: int, width: int) -> int:
    best = first
    least = _load(s, first, width)
    for r in range(first + width, first + count, width):
        load = _load(s, r, width)
        if load < least:
            best = r
            least = load
    return best


@kernel
def _power_of_two(s: Sim, first: int, count: int, width: int, lot: int, other: int) -> int:
    if count == 1:
        return first
    a = lot % count
    b = (a + 1 + other % (count - 1)) % count
    one = first + width * min(a, b)
    two = first + width * max(a, b)
    return int(two if _load(s, two, width) < _load(s, one, width) else one)


@kernel
def _kv(s: Sim, r: int, width: int, now: int) -> int:
    """Blocks in use and asked for on the target that begins with rank `r`."""
    blocks = 0
    for each in range(r, r + width):
        blocks += used(s, each, now)
    return blocks


@kernel
def _least_kv(s: Sim, first: int, count: int, width: int, now: int) -> int:
    best = first
    least = _kv(s, first, width, now)
    for r in range(first + width, first + count, width):
        blocks = _kv(s, r, width, now)
        if blocks < least or (blocks == least and _load(s, r, width) < _load(s, best, width)):
            best = r
            least = blocks
    return best


@kernel
def _prefix_aware(s: Sim, q: int, side: int, first: int, count: int, now: int) -> int:
    """Least of (prompt tokens to compute there, its own new ones included) + tokens of the prompts
    there with its own: the cost of Dynamo's KV router with its default weights. It draws among
    equals by lot."""
    best = first
    least = -1
    equals = 0
    for r in range(first, first + count):
        observe(s, s.ranks[r].engine, now)
        cost = _dynamo_cost(s, q, side, r)
        if least < 0 or cost < least:
            best = r
            least = cost
            equals = 0
        equals += cost == least
    if equals == 1:
        return best
    drawn = s.lots[q, 2 * side] % equals
    while drawn > 0:
        best += 1
        drawn -= _dynamo_cost(s, q, side, best) == least
    return best


@kernel
def _dynamo_cost(s: Sim, q: int, side: int, r: int) -> int:
    """Tokens by which Dynamo's KV router compares ranks. Its prefill router leaves out the prompts
    there (`router_track_active_blocks`), its decode router what is to be computed; that one looks
    at caches only with conditional disaggregation, here always."""
    rank = s.ranks[r]
    block = s.pools[rank.pool].block
    planned = (rank.planned + own(s, q, r)) * block
    if side == 1:
        return int(planned - cached(s, q, r))
    computed = rank.backlog + s.requests[q].isl - cached(s, q, r)
    if s.rules[0].split == 1:
        return int(computed)
    return int(computed + planned - shared(s, q, r) * block)


@kernel
def cached(s: Sim, q: int, r: int) -> int:
    """Leading tokens of the prompt of request `q` that rank `r` caches, as its events say."""
    pool = s.pools[s.ranks[r].pool]
    if pool.recalls == 0:
        return 0
    return int(matched(s, r, q, s.cover[q] // pool.block) * pool.block)


@kernel
def _linear(s: Sim, q: int, first: int, count: int, now: int) -> int:
    """Greatest of cache weight x share of the prompt cached there + load weight x (place between
    the longest queue (0) and the shortest (1) + share of blocks free)."""
    shortest = longest = s.ranks[first].waiting
    for r in range(first + 1, first + count):
        shortest = min(shortest, s.ranks[r].waiting)
        longest = max(longest, s.ranks[r].waiting)
    best = first
    most = -1.0
    isl = s.requests[q].isl
    for r in range(first, first + count):
        rank = s.ranks[r]
        pool = s.pools[rank.pool]
        observe(s, rank.engine, now)
        queue = 1.0
        if longest > shortest:
            queue = (longest - rank.waiting) / (longest - shortest)
        cached = hits(s, r, q, isl) * pool.block / isl
        score = s.scores[0] * cached + s.scores[1] * (queue + rank.free / pool.usable)
        if score > most or (score == most and rank.load < s.ranks[best].load):
            best = r
            most = score
    return best


@kernel
def _prefix_approx(s: Sim, q: int, side: int, first: int, count: int, width: int, now: int) -> int:
    """A rank that was sent the longest known start of this prompt, the first or the lightest, if
    that start is long enough and loads are even enough; else the rank with the fewest requests."""
    if now >= s.rules[0].tree_lost:
        s.rules[0].tree_lost = NEVER
        for each in range(2):
            _forget_all_but(s, each, 0)
    least = _least_requests(s, first, count, width)
    lightest = _load(s, least, width)
    heaviest = lightest
    for r in range(first, first + count, width):
        heaviest = max(heaviest, _load(s, r, width))
    best = least
    apart = heaviest - lightest > s.rules[0].balance_abs
    if not (apart and heaviest > lightest * s.scores[3]):
        known, sent = _remembered(s, q, side)
        if known > s.scores[2] * s.requests[q].isl:
            best = sent
            if s.rules[0].lightest == 1:
                best = _lightest(s, q, side, known, first, count, width)
    _remember(s, q, side, best)
    return int(best)


@kernel
def _remembered(s: Sim, q: int, side: int) -> tuple[int, int]:
    """Leading tokens of the prompt that the tree of `side` knows, and the rank that was first sent
    all of them: what their trees call a node's last tenant is the one that made it."""
    rules = s.rules[0]
    rank = -1
    depth = 0
    ids = ceil_div(s.cover[q], rules.id_tokens)
    while depth < ids:
        item = side * rules.nodes + s.name[s.name_start[q] + depth]
        if s.tree_rank[item] < 0:
            break
        rank = s.tree_rank[item]
        depth += 1
    return int(min(depth * rules.id_tokens, s.cover[q])), int(rank)


@kernel
def _lightest(s: Sim, q: int, side: int, known: int, first: int, count: int, width: int) -> int:
    """The target with the fewest requests among those that were sent the first `known` tokens."""
    rules = s.rules[0]
    depth = ceil_div(known, rules.id_tokens)
    item = side * rules.nodes + s.name[s.name_start[q] + depth - 1]
    best = -1
    for r in range(first, first + count, width):
        sent = s.tree_sent[item * rules.ranks + r] == 1
        if sent and (best < 0 or _load(s, r, width) < _load(s, best, width)):
            best = r
    return best


@kernel
def _remember(s: Sim, q: int, side: int, rank: int) -> None:
    """Enter a prompt sent to `rank` into the tree, its end first: what is forgotten first is then
    always a leaf."""
    rules = s.rules[0]
    for depth in range(ceil_div(s.cover[q], rules.id_tokens) - 1, -1, -1):
        item = side * rules.nodes + s.name[s.name_start[q] + depth]
        if s.tree_rank[item] >= 0:
            chain.unlink(s.tree, side, item)
        else:
            s.tree_size[side] += 1
            s.tree_rank[item] = rank
        if rules.lightest == 1:
            s.tree_sent[item * rules.ranks + rank] = 1
        chain.append(s.tree, side, item)
    _forget_all_but(s, side, rules.tree_ids)


@kernel
def _forget_all_but(s: Sim, side: int, ids: int) -> None:
    """Forget the starts of prompts sent longest ago until so many ids are left."""
    while s.tree_size[side] > ids:
        oldest = s.tree.head[side]
        chain.unlink(s.tree, side, oldest)
        s.tree_rank[oldest] = -1
        if s.rules[0].lightest == 1:
            for r in range(s.rules[0].ranks):
                s.tree_sent[oldest * s.rules[0].ranks + r] = 0
        s.tree_size[side] -= 1
