"""The prompts that a router sent to a rank, as Dynamo's KV router counts them: by full blocks,
from the choice of the rank to the request's end, without what is generated.

Mixed instances count a block that several prompts begin with once; decode instances count every
prompt whole, prefill instances none.
"""

from splitpoint.native.kernel import kernel
from splitpoint.sim.state import Sim

# How they count: not at all (no such router), a block once, every prompt whole.
UNCOUNTED, ONCE, WHOLE = range(3)


@kernel
def assign(s: Sim, q: int, r: int) -> None:
    """Request `q` is rank `r`'s from now on."""
    rank = s.ranks[r]
    rank.load += 1
    counting = s.rules[0].counting
    if counting != UNCOUNTED:
        rank.planned += own(s, q, r)
    if counting == ONCE:
        rank.planned -= shared(s, q, r)
        _count(s, q, r, 1)


@kernel
def dismiss(s: Sim, q: int, r: int) -> None:
    """Request `q` is no longer rank `r`'s."""
    rank = s.ranks[r]
    rank.load -= 1
    counting = s.rules[0].counting
    if counting != UNCOUNTED:
        rank.planned -= own(s, q, r)
    if counting == ONCE:
        _count(s, q, r, -1)
        rank.planned += shared(s, q, r)


@kernel
def own(s: Sim, q: int, r: int) -> int:
    """Full blocks of the prompt of request `q`, as rank `r` has them."""
    return int(s.requests[q].isl // s.pools[s.ranks[r].pool].block)


@kernel
def shared(s: Sim, q: int, r: int) -> int:
    """Leading blocks of the prompt of request `q` that are also another's of rank `r`."""
    rules = s.rules[0]
    known, unknown = 0, s.cover[q] // rules.id_tokens + 1
    # Who has an id of a prompt has all before it.
    while unknown - known > 1:
        depth = (known + unknown) // 2
        if s.prompts[r * rules.nodes + s.name[s.name_start[q] + depth - 1]] > 0:
            known = depth
        else:
            unknown = depth
    return int(known * rules.id_tokens // s.pools[s.ranks[r].pool].block)


@kernel
def _count(s: Sim, q: int, r: int, change: int) -> None:
    """Add `change` to the requests of rank `r` that have each whole id of the prompt of `q`."""
    rules = s.rules[0]
    for at in range(s.name_start[q], s.name_start[q] + s.cover[q] // rules.id_tokens):
        s.prompts[r * rules.nodes + s.name[at]] += change
