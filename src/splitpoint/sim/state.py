"""The whole state of a run as flat arrays: one row per pool, engine, rank, request and ticket.

A ticket is a request's place on one instance: ticket r is request r where it prefills (or on its
mixed instance), ticket n + r is request r on its decode instance. Times are integer picoseconds.

A pipeline has a lane for each of its stages: a place for one micro-batch on its way and for who
decodes in it. The row of a rank has the batch of the lane that its engine is turned to; those of
the others are kept in rows of their own.
"""

import numpy as np

from splitpoint.inputs.trace import Floats, Longs
from splitpoint.native.arrays import Arrays
from splitpoint.native.kernel import Rows
from splitpoint.sim.chain import Chain

NEVER = np.iinfo(np.int64).max
PICOS = 10**12

# Where a ticket stands. REMOTE waits in a decode queue for blocks, PULLING has them and waits for
# its KV, FLOWED has all KV of a layerwise pull before prefill ends, LOADED waits for a seat,
# FRESH computes the last prompt token on the decode side, HELD is prefilled and not yet pulled,
# COMING is routed to an instance while the other one has to do with it, RESERVED has blocks on the
# decode side before its prefill begins, ENDING has its last token (or, on a prefill instance,
# chunk) in the step in progress. RELOADING waits for blocks from host memory, RELOADED has them and
# waits to be admitted. PARKED was retracted on a decode instance and has its KV in host memory.
OUT, WAITING, FILLING, DECODING, HELD, REMOTE, PULLING, FLOWED, LOADED, FRESH, COMING = range(11)
ENDING, RELOADING, RELOADED, PARKED, RESERVED = range(11, 16)

# Outcomes of a request, as run.OUTCOMES numbers them.
DONE, TIMED_OUT, ABORTED, INFEASIBLE, UNFINISHED = range(5)

MIXED, PREFILL, DECODE = range(3)


def _columns(*names: str) -> np.dtype[np.void]:
    return np.dtype([(name, np.int64) for name in names], align=True)


POOL = _columns(
    "role",
    "block",
    "full",
    "fixed",
    "drafts",
    "seats",
    "budget",
    "caching",
    "recalls",
    "counts",
    "aligned",
    "hybrid",
    "plain",
    "ahead",
    "stages",
    "later",
    "host",
    "reload",
    "reserving",
    "share_first",
    "share_least",
    "share_fall",
    "horizon",
    "retract_steps",
    "remote_reserve",
    "parks",
    "longest_first",
    "mixes",
    "usable",
    "in_flight",
    "windows",
    "window_at",
    "tail",
    "wide",
    "slides",
    "states",
    "dense",
    "junctions",
    "drops",
    "nameless",
    "leaves",
    "window",
    "decode_at",
    "mixed_at",
    "sharing",
    "padded",
    "least",
    "balance",
    "choice",
    "width",
    "looks",
    "pair",
    "prefix",
    "span",
)
ENGINE = _columns(
    "pool",
    "first",
    "ranks",
    "start",
    "first_step",
    "leap",
    "synced",
    "busy",
    "waits",
    "lasts",
    "steady",
    "prefilling",
    "yielded",
    "opened",
    "closed",
    "flying",
    "lane",
    "oldest",
    "newest",
    "turn",
    "filled",
    "dealt",
    "told",
)
RANK = _columns(
    "engine",
    "pool",
    "machine",
    "free",
    "cached",
    "tail",
    "held",
    "running",
    "decoders",
    "context",
    "rate",
    "seats_at",
    "ring_at",
    "waiting",
    "load",
    "demand",
    "backlog",
    "planned",
    "seen",
    "granted",
    "preempted",
    "fresh",
    "leavers",
    "steps",
    "rests",
    "kind",
    "chunk",
    "prompts",
    "reach",
    "decodes",
    "fills",
    "attended",
    "pairs",
    "before",
    "work",
    "slope",
    "dirty",
    "row_time",
    "row_used",
    "row_least",
    "row_cached",
    "row_held",
    "row_running",
    "row_waiting",
    "busy",
    "prefill_steps",
    "decode_steps",
    "mixed_steps",
    "preemptions",
    "hits",
    "queried",
    "reloaded",
    "reloads",
    "promised",
    "owing",
    "looks",
    "share",
    "shut",
    "easing",
    "inbound",
    "segments",
    "segment_at",
    "segment_next",
    "segment_free",
    "index_at",
    "index_mask",
    "lane_at",
    "late",
)
# The columns from `flies` on are the engine's, in the row of its first rank; row i of the last two
# is about stage i: what the filled batch `lasts` there, when the stage is `free`.
LANE = _columns(
    "decoders",
    "context",
    "rate",
    "fresh",
    "granted",
    "seats_at",
    "ring_at",
    "steps",
    "flies",
    "turn",
    "until",
    "next",
    "lasts",
    "free",
)
REQUEST = _columns(
    "isl",
    "osl",
    "think",
    "next",
    "session",
    "rate",
    "arrive",
    "prefill_start",
    "prefill_end",
    "transfer_start",
    "transfer_end",
    "first_token",
    "end",
    "hits",
    "reloaded",
    "preemptions",
    "prefill_rank",
    "decode_rank",
    "outcome",
    "over",
    "barred",
    "own",
)
TICKET = _columns(
    "rank",
    "state",
    "computed",
    "target",
    "got",
    "chunk",
    "blocks",
    "named",
    "segment",
    "step0",
    "demand",
    "backlog",
    "gone",
    "inbound",
    "reloaded",
    "promised",
    "order",
)
# What a ticket's window groups keep named (`sim/tails.py`): the columns `low` .. `high` - 1 that it
# has and has looked at, as far as they belong to the tail of its `hit` columns or, after those, of
# its `first` or `last` columns. `owed`: columns it gave back whose blocks it has not replaced yet.
# The columns from `hit` to `copied` it computed while others held them. `stop`: the columns after
# which a chunk ends to keep a state, because full groups have as many of its prompt (0: none).
# `late`: what its last chunk held and decodes do not need goes with the next step.
TAIL = _columns("hit", "first", "last", "low", "high", "owed", "copied", "stop", "late")
FLOW = _columns("work", "pieces", "since", "sharers", "source", "sink")
SEGMENT = _columns(
    "key", "source", "low", "high", "refs", "pins", "parent", "children", "before", "copies"
)
RULES = _columns(
    "requests",
    "ranks",
    "tickets",
    "first_reload",
    "split",
    "routing",
    "decode_routing",
    "direct_below",
    "timeout",
    "closed",
    "leaps",
    "layerwise",
    "reserve_first",
    "latency",
    "per_descriptor",
    "link_ok",
    "lease",
    "id_tokens",
    "first_sink",
    "ports",
    "width",
    "abort",
    "nodes",
    "balance_abs",
    "tree_lost",
    "tree_ids",
    "counting",
    "lightest",
)
CLOCK = _columns(
    "now",
    "ordered",
    "later",
    "busy",
    "flows",
    "arrived",
    "timed",
    "patient",
    "leases",
    "leased",
    "waits",
    "rows",
    "gap",
    "turn_prefill",
    "turn_decode",
    "names",
    "ended",
)


class Sim(Arrays):
    """Everything the event loop reads and writes.

    `segments` and `index` are the prefix caches of all ranks, each rank with rows and slots of its
    own; `idle` queues the segments that nobody holds. A block of theirs is one per full group.
    In a pipeline `ticket_lane` is where a ticket decodes, `owed` 1 if a batch samples it.
    """

    rules: Rows
    clock: Rows
    pools: Rows
    windows: Longs
    decode: Longs
    context: Longs
    mixed: Longs
    joined: Longs
    together: Longs
    engines: Rows
    ranks: Rows
    requests: Rows
    tickets: Rows
    tails: Rows
    segments: Rows
    index: Longs
    name_start: Longs
    name: Longs
    cover: Longs
    after: Longs
    idle: Chain
    places: Chain
    filling: Chain
    seats: Longs
    last_step: Longs
    seat_pos: Longs
    ring: Longs
    busy: Longs
    busy_key: Longs
    busy_pos: Longs
    waits: Longs
    lanes: Rows
    ticket_lane: Longs
    owed: Longs
    ordered: Longs
    later: Longs
    later_key: Longs
    later_pos: Longs
    arrived: Longs
    leased: Longs
    lease_key: Longs
    flow: Rows
    flows: Longs
    flow_key: Longs
    flow_pos: Longs
    sources: Chain
    sinks: Chain
    reloads: Chain
    flow_count: Longs
    outward: Longs
    inward: Longs
    link_bytes: Floats
    lots: Longs
    session_rank: Longs
    scores: Floats
    tree: Chain
    tree_rank: Longs
    tree_size: Longs
    tree_sent: Longs
    prompts: Longs
    rows: Longs
    row_next: Longs
