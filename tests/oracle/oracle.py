"""A plain, slow simulator: every step on its own, every block an object, every rule a loop.

Written from the rules (docs/simulator.md), sharing no code with the kernels but the random draws
of a request. It exists to be compared with `splitpoint.sim.simulate` to the last bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from splitpoint.inputs.trace import Trace
from splitpoint.sim.draws import ONE, SHARE, lots, rates
from splitpoint.sim.world import PoolSpec, World
from splitpoint.timing.curve import StepCurve

PICOS = 10**12
NEVER = 2**63
DONE, TIMED_OUT, ABORTED, INFEASIBLE, UNFINISHED = range(5)
END, FLOW, LEASE, ARRIVAL, TIMEOUT, ABORT = range(6)


def picos(seconds: float) -> int:
    return int(np.rint(np.float64(seconds) * PICOS))


@dataclass(eq=False)
class Column:
    """The blocks (one per full group, or per window group) of one named block of a prefix, and the
    copies of those who computed it while it was cached."""

    key: tuple[int, ...]
    blocks: list[Block]
    refs: int = 0
    copies: list[list[Block]] = field(default_factory=list)
    # SGLang's tree evicts nodes: the columns that one insertion added, cut where prompts part.
    node: list[Column] = field(default_factory=list)


@dataclass(eq=False)
class Block:
    column: Column | None = None


@dataclass(eq=False)
class Request:
    index: int
    isl: int
    osl: int
    think: int
    rate: int
    chain: list[tuple[int, ...]]
    after: Request | None = None
    next: Request | None = None
    session: int = 0
    lots: tuple[int, ...] = ()
    id_tokens: int = 1
    arrive: int = -1
    prefill_start: int = -1
    prefill_end: int = -1
    transfer_start: int = -1
    transfer_end: int = -1
    first_token: int = -1
    end: int = -1
    hits: int = 0
    reloaded: int = 0
    preemptions: int = 0
    prefill_rank: int = -1
    decode_rank: int = -1
    outcome: int = UNFINISHED
    over: bool = False
    seats: dict[str, Seat] = field(default_factory=dict)

    @property
    def told(self) -> Request:
        """Whose ids name its blocks: the next turn's, where that one repeats its output."""
        return self.after or self


@dataclass(eq=False)
class Seat:
    """A request's place on one rank."""

    request: Request
    rank: Rank
    local: bool
    state: str = "waiting"
    computed: int = 0
    target: int = 0
    got: int = 0
    stepped: int = 0
    chunk: int = 0
    columns: list[Column] = field(default_factory=list)
    loose: list[Block] = field(default_factory=list)
    demand: int = 0
    gone: bool = False
    reloaded: int = 0
    promised: int = 0
    # Named columns of its window groups, the columns that were hits, those up to which it holds
    # copies, those that it has looked at, and the ends of the tails that it names.
    windows: dict[int, Column] = field(default_factory=dict)
    hit: int = 0
    copied: int = 0
    looked: int = 0
    ends: tuple[int, ...] = ()
    # Columns after which a chunk ends, because full groups have as many of the prompt.
    stop: int = 0
    # Hits and blocks to pull of one that has room on the decode side before its prefill.
    to_pull: tuple[int, int] = (0, 0)
    # Whether it gives back the states of its last chunk as its next step is filled.
    late: bool = False
    # In a pipeline: the batch that brings its next token, the slot that it decodes in, and the
    # first step that it may decode in again.
    flight: Flight | None = None
    slot: int = 0
    eligible: int = 0

    def tokens(self) -> int:
        return self.got + ((self.stepped * self.request.rate) >> 20)

    def in_cache(self) -> int:
        """Tokens whose KV is there: all but the last that was generated."""
        if self.state == "filling":
            return self.computed
        generated = min(self.tokens(), self.request.osl)
        return max(self.computed, self.request.isl + generated - 1)


@dataclass(eq=False)
class Rank:
    index: int
    engine: Engine
    spec: PoolSpec
    queue: list[Block]
    cache: dict[tuple[int, ...], Column] = field(default_factory=dict)
    waiting: list[Seat] = field(default_factory=list)
    ready: list[Seat] = field(default_factory=list)
    running: list[Seat] = field(default_factory=list)
    held: list[Seat] = field(default_factory=list)
    load: int = 0
    demand: int = 0
    # The load that its engine saw, with what it sent since.
    seen: int = 0
    # Requests that the router sent here, with their tokens to compute as it saw them.
    sent: dict[Request, int] = field(default_factory=dict)
    preempted: bool = False
    # Blocks that the chunks of the step being filled will take, and looks at the queue so far.
    owed: list[tuple[Seat, int]] = field(default_factory=list)
    looks: int = 0
    share: int = 0
    rests: bool = False
    shut: bool = False
    kind: str = ""
    due: list[Seat] = field(default_factory=list)
    busy: int = 0
    steps: dict[str, int] = field(default_factory=lambda: {"p": 0, "d": 0, "m": 0})
    preemptions: int = 0
    hit_tokens: int = 0
    reloaded_tokens: int = 0
    # Names of the blocks in host memory, least recently used first, and reloads that hold each.
    host: dict[tuple[int, ...], int] = field(default_factory=dict)
    reloads: list[Reload] = field(default_factory=list)
    queried: int = 0
    log: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)

    @property
    def full(self) -> int:
        return sum(g.kind == "full" for g in self.spec.groups)

    @property
    def drafts(self) -> int:
        return self.spec.curve.drafts

    @property
    def usable(self) -> int:
        return max(0, self.spec.kv_blocks - 1)

    @property
    def states(self) -> bool:
        """Whether a hit needs the state at its end."""
        spec = self.spec
        other = spec.reserve is not None or spec.host_blocks or not spec.prefix_caching
        return spec.states and not other and {g.kind for g in spec.groups} == {"full", "state"}

    @property
    def hybrid(self) -> bool:
        return any(g.kind == "state" for g in self.spec.groups) and not self.states

    @property
    def drops(self) -> int:
        """Blocks that a hit gives up for drafts."""
        return int(self.states and self.spec.drops_block and self.drafts > 0)

    def last_state(self, tokens: int) -> int:
        """Columns after which a prompt of so many tokens can be taken up again."""
        block = self.spec.block_tokens
        return max(0, tokens // block - 1 if self.drops else (tokens - 1) // block)

    def state(self) -> tuple[int, int, int, int, int]:
        """Used, cached and held blocks, running and waiting requests."""
        return (
            self.usable - len(self.queue),
            sum(b.column is not None for b in self.queue),
            len({b for s in self.held for b in s.loose + [b for c in named(s) for b in c.blocks]}),
            len(self.running),
            len(self.waiting),
        )

    def held_blocks(self, tokens: int, new: int) -> int:
        block = self.spec.block_tokens
        columns = math.ceil(tokens / block)
        total = 0
        for group in self.spec.groups:
            if group.kind == "full":
                total += columns
            elif group.kind == "state":
                total += max(1, group.fixed - 1) if self.states else group.fixed
            else:
                total += min(columns, math.ceil((group.window - 1 + new) / block) + 1)
        return total

    def chunk_blocks(self, computed: int, chunk: int) -> int:
        """Blocks of a request in the step of a chunk: a state is read and, in another block,
        written."""
        total = self.held_blocks(computed + chunk + self.drafts, chunk)
        columns = [math.ceil(t / self.spec.block_tokens) for t in (computed, computed + chunk)]
        if self.states and 0 < columns[0] < columns[1]:
            total += self.width
        return total

    @property
    def width(self) -> int:
        """Blocks of a window column."""
        return len(self.spec.groups) - self.full

    @property
    def tail(self) -> int:
        """Columns that a hit needs in window groups; 0 where it needs none."""
        spec = self.spec
        if self.states:
            return 1
        other = spec.reserve is not None or spec.host_blocks or not spec.prefix_caching
        if other or not spec.tails or {g.kind for g in spec.groups} != {"full", "window"}:
            return 0
        if len({g.window for g in spec.groups if g.kind == "window"}) > 1:
            return 0
        return math.ceil((self.window - 1) / spec.block_tokens)

    @property
    def nameless_first(self) -> bool:
        """Whether blocks without a name are taken before all others."""
        spec = self.spec
        full = all(g.kind == "full" for g in spec.groups)
        if self.states:
            return spec.tails or spec.nameless_first
        plain = spec.nameless_first and spec.prefix_caching and spec.reserve is None and full
        return plain or self.tail > 0 or self.leaves

    @property
    def leaves(self) -> bool:
        """Whether it has SGLang's tree."""
        return self.spec.reserve is not None and self.spec.prefix_caching and self.full > 0

    @property
    def free(self) -> int:
        return len(self.queue) - sum(count for _, count in self.owed)

    def part(self, column: Column) -> None:
        """A prompt ends with this column: its node is cut there, which uses the rest."""
        end = column.node.index(column) + 1
        first, rest = column.node[:end], column.node[end:]
        for part in (first, rest):
            for other in part:
                other.node = part
        if rest and rest[0].refs == 0:
            self.use(rest)

    def use(self, columns: list[Column]) -> None:
        """Idle columns are the last used, ends of prompts first."""
        for column in reversed(columns):
            for block in column.blocks:
                self.queue.remove(block)
            self.queue += column.blocks

    def touch(self, request: Request, count: int) -> None:
        """Somebody looks for the first columns of a prompt, all cached."""
        found = [self.cache[key_of(request, j, self.spec.block_tokens)] for j in range(count)]
        if found:
            self.part(found[-1])
        self.use([column for column in found if column.refs == 0])

    def evict(self, count: int) -> None:
        """Drop whole nodes until so many nameless blocks are next, or no node is left."""
        while True:
            at = next((i for i, b in enumerate(self.queue) if b.column is not None), -1)
            if at < 0 or at >= count:
                return
            first = self.queue[at].column
            assert first is not None
            for column in first.node:
                for block in column.blocks:
                    block.column = None
                del self.cache[column.key]

    def pay(self) -> None:
        """Take the blocks that the step's chunks are owed."""
        owed, self.owed = self.owed, []
        self.evict(sum(count for _, count in owed))
        for seat, count in owed:
            seat.loose += self.take(count)

    @property
    def window(self) -> int:
        if self.states:
            return 2
        return max(g.window for g in self.spec.groups if g.kind == "window")

    def behind(self, computed: int) -> int:
        """Columns that no window reaches any more."""
        return max(0, computed - self.window + 1) // self.spec.block_tokens

    def take(self, count: int) -> list[Block]:
        taken = []
        if self.leaves:
            self.evict(count)
        for _ in range(count):
            block = self.queue.pop(0)
            if block.column is not None:
                column = block.column
                for other in column.blocks:
                    other.column = None
                if column.copies:
                    self.be(column, column.copies.pop())
                    column.refs = 1
                else:
                    del self.cache[column.key]
            taken.append(block)
        return taken

    @staticmethod
    def be(column: Column, blocks: list[Block]) -> None:
        column.blocks = blocks
        for block in blocks:
            block.column = column

    def nameless(self, blocks: list[Block]) -> None:
        """Blocks without a name come back."""
        if self.nameless_first:
            self.queue[:0] = blocks
        else:
            self.queue += blocks

    def leave(self, column: Column, copied: bool) -> None:
        """A holder less. Its copy, if it has one, is freed; if nobody holds what was there first,
        that one is forgotten and the copy stays."""
        if not copied or not column.copies:
            column.refs -= 1
            if column.refs == 0:
                self.queue += column.blocks
            return
        copy = column.copies.pop()
        if column.refs == 0:
            for block in column.blocks:
                block.column = None
            self.be(column, copy)
        self.queue += copy

    def slide(self, seat: Seat, low: int) -> None:
        """Give back the named window columns before column `low`, last first."""
        for j in sorted(seat.windows, reverse=True):
            if j < low:
                self.leave(seat.windows.pop(j), seat.hit <= j < seat.copied)
        seat.looked = max(seat.looked, low)

    def name_tails(self, seat: Seat, source: Request, count: int) -> None:
        for j in range(max(seat.looked, seat.hit), count):
            if not any(end - self.tail <= j < end for end in seat.ends):
                continue
            own, seat.loose = seat.loose[: self.width], seat.loose[self.width :]
            key = (-1, *key_of(source, j, self.spec.block_tokens))
            if key in self.cache:
                self.cache[key].copies.append(own)
            else:
                self.cache[key] = Column(key, [], 1)
                self.be(self.cache[key], own)
            seat.windows[j] = self.cache[key]
        if self.states:
            count = min(count, max(seat.ends, default=0))
        seat.looked = max(seat.looked, count)

    def resumable(self, request: Request, most: int) -> int:
        """The longest start of a prompt whose tail window groups have."""
        found = 0
        for j in reversed(range(most)):
            key = (-1, *key_of(request, j, self.spec.block_tokens))
            found = found + 1 if key in self.cache else 0
            if found == self.tail:
                return j + found
        return found

    def resize(self, seat: Seat, total: int) -> None:
        """Give a seat `total` blocks in all, or take the surplus away."""
        have = self.blocks_of(seat)
        if total >= have and self.leaves and seat.state == "filling":
            self.owed.append((seat, total - have))
        elif total >= have:
            seat.loose += self.take(total - have)
        else:
            self.nameless([seat.loose.pop() for _ in range(have - total)])

    def blocks_of(self, seat: Seat) -> int:
        owed = sum(count for other, count in self.owed if other is seat)
        named = len(seat.columns) * self.full + len(seat.windows) * self.width
        return named + len(seat.loose) + owed

    def release(self, seat: Seat) -> None:
        if self.tail:
            self.slide(seat, 1 + max(seat.windows, default=-1))
        if self.nameless_first:
            # Full blocks have names in vLLM, whether anybody will ask for them or not.
            block = self.spec.block_tokens
            filled = self.full * max(0, seat.in_cache() // block - len(seat.columns))
            self.nameless(seat.loose[filled:])
            del seat.loose[filled:]
        self.queue += seat.loose
        seat.loose = []
        for j, column in reversed(list(enumerate(seat.columns))):
            self.leave(column, seat.hit <= j < seat.copied)
        seat.columns = []

    def hold(self, column: Column) -> None:
        if column.refs == 0:
            for block in column.blocks:
                self.queue.remove(block)
        column.refs += 1

    def name_blocks(self, seat: Seat, source: Request, tokens: int) -> None:
        """Name every block of the first `tokens` tokens."""
        if not self.spec.prefix_caching or self.full == 0:
            return
        block = self.spec.block_tokens
        fresh = False
        node: list[Column] = []
        if self.tail:
            self.name_tails(seat, source, tokens // block)
        for j in range(len(seat.columns), tokens // block):
            key = key_of(source, j, block)
            own, seat.loose = seat.loose[: self.full], seat.loose[self.full :]
            column = self.cache.get(key)
            if column is None:
                if self.leaves and not node and seat.columns:
                    self.part(seat.columns[-1])
                column = Column(key, own, 1, node=node)
                node.append(column)
                for b in own:
                    b.column = column
                self.cache[key] = column
            elif self.tail:
                column.copies.append(own)
                seat.copied = j + 1
            else:
                if self.leaves and j + 1 == tokens // block:
                    self.part(column)
                self.hold(column)
                self.nameless(own) if self.leaves else self.queue.extend(own)
            seat.columns.append(column)
            fresh = True
        if fresh:
            self.copy_to_host([key_of(source, j, block) for j in range(len(seat.columns))])

    def name_before_going(self, seat: Seat, tokens: int) -> None:
        """Name what a seat has, and of its windows what they reach."""
        if self.tail:
            low = self.behind(seat.in_cache())
            if self.states and not self.spec.tails:
                # The state of the last boundary that it generated past, as if it were still there.
                block = self.spec.block_tokens
                boundary = seat.in_cache() // block
                if 0 < boundary <= tokens // block:
                    low = min(low, boundary - 1)
                    key = (-1, *key_of(seat.request.told, boundary - 1, block))
                    if boundary > max(seat.ends, default=0) and key not in self.cache:
                        seat.ends += (boundary,)
            self.slide(seat, low)
        self.name_blocks(seat, seat.request.told, tokens)

    def copy_to_host(self, keys: list[tuple[int, ...]]) -> None:
        """Copy what the host lacks of a run of blocks, if there is room once the run's own blocks
        are spared; the whole run then counts as used, its end first."""
        most = self.spec.host_blocks // self.full
        lacking = [key for key in keys if key not in self.host]
        if not lacking or not self.spec.host_blocks:
            return
        spared = [key for key, holders in self.host.items() if holders or key in keys]
        if len(lacking) <= most - len(spared):
            while len(self.host) + len(lacking) > most:
                del self.host[next(key for key in self.host if key not in spared)]
            self.host.update(dict.fromkeys(lacking, 0))
        self.use_on_host(keys)

    def use_on_host(self, keys: list[tuple[int, ...]]) -> None:
        for key in reversed(keys):
            if key in self.host and not self.host[key]:
                self.host[key] = self.host.pop(key)

    def on_host(self, request: Request, most: int) -> int:
        j = 0
        while j < most and key_of(request, j, self.spec.block_tokens) in self.host:
            j += 1
        return j

    def most_hits(self, request: Request, target: int) -> int:
        """Blocks that a cache with everything would give: one token is left to compute, which a
        hybrid does by giving up a block."""
        block = self.spec.block_tokens
        return target // block if self.hybrid or self.drops else (target - 1) // block

    def cached(self, request: Request, most: int) -> int:
        j = 0
        block = self.spec.block_tokens
        while j < most and key_of(request, j, block) in self.cache:
            j += 1
        return j

    def hits(self, request: Request, target: int) -> int:
        if not self.spec.prefix_caching or self.full == 0:
            return 0
        found = self.cached(request, self.most_hits(request, target))
        if self.tail:
            return self.resumable(request, max(0, found - self.drops))
        return max(0, found - self.hybrid)

    def hits_on_host(self, seat: Seat) -> int:
        """Blocks that host memory has beyond the pool's."""
        if not self.spec.host_blocks or not self.spec.prefix_caching or self.full == 0:
            return 0
        told = seat.request.told
        most = self.most_hits(told, seat.target)
        return max(0, self.on_host(told, most) - self.hybrid - self.cached(told, most))

    def seat_hits(self, seat: Seat, count: int, computed: int = 0) -> None:
        """Take the first `count` columns; of windows those that `computed` tokens reach back to."""
        if self.tail:
            told, block = seat.request.told, self.spec.block_tokens
            seat.stop = self.junction(told, seat.target or seat.request.isl, count)
            seat.ends = (self.last_state(seat.request.isl), seat.stop)
            if self.states and not self.spec.tails:
                seat.ends = ()
            seat.hit = count
            seat.copied = 0
            seat.looked = self.behind(computed)
            for j in self.reached(count, computed):
                column = self.cache[(-1, *key_of(told, j, block))]
                self.hold(column)
                seat.windows[j] = column
        for j in range(count):
            column = self.cache[key_of(seat.request.told, j, self.spec.block_tokens)]
            if self.leaves and j + 1 == count:
                self.part(column)
            self.hold(column)
            seat.columns.append(column)

    def reach(self, request: Request, target: int) -> int:
        """Columns that full groups have."""
        return max(0, self.cached(request, self.most_hits(request, target)) - self.drops)

    def junction(self, request: Request, target: int, count: int) -> int:
        """Columns that full groups have, if there are more than the `count` hits; vLLM before 0.24
        does not look."""
        reach = self.reach(request, target)
        old = self.states and not self.spec.tails and not self.spec.nameless_first
        return 0 if old or reach <= count else reach

    def names_now(self, request: Request, count: int) -> bool:
        """Whether the state after so many columns of a prompt is named in this very step: it is
        computed, or is the last of a prompt whose last block is computed."""
        block = self.spec.block_tokens

        def names(seat: Seat) -> bool:
            end = seat.computed + seat.chunk
            if end == count * block:
                return count in seat.ends
            last = seat.computed == count * block and end < (count + 1) * block
            return last and self.spec.tails and count == self.last_state(seat.request.isl)

        return any(
            seat.chunk > 0
            and seat.state == "filling"
            and names(seat)
            and key_of(seat.request.told, count - 1, block) == key_of(request, count - 1, block)
            for seat in self.running
        )

    def reached(self, count: int, computed: int) -> range:
        """The window columns among `count` hits that `computed` tokens reach back to."""
        return range(max(self.behind(computed), count - self.tail), count)

    def free_after_hits(self, request: Request, count: int, computed: int = 0) -> int:
        """Free blocks that would be left if the first `count` hits were held."""
        free = self.free
        if self.tail:
            for j in self.reached(count, computed):
                key = (-1, *key_of(request, j, self.spec.block_tokens))
                if self.cache[key].refs == 0:
                    free -= self.width
        for j in range(count):
            if self.cache[key_of(request, j, self.spec.block_tokens)].refs == 0:
                free -= self.full
        return free

    def expect(self, seat: Seat, demand: int) -> None:
        self.demand += demand - seat.demand
        seat.demand = demand

    def known(self, request: Request) -> int:
        """Leading tokens of a prompt that its events say are cached."""
        if not self.spec.prefix_caching or self.full == 0:
            return 0
        block = self.spec.block_tokens
        return self.cached(request, covered(request) // block) * block

    def prompt_blocks(self, request: Request) -> set[tuple[int, ...]]:
        """Full blocks of a prompt, those that whole ids name alike for all that begin alike."""
        block, ids = self.spec.block_tokens, covered(request) // request.id_tokens
        blocks: set[tuple[int, ...]] = set()
        for j in range(request.isl // block):
            depth = math.ceil((j + 1) * block / request.id_tokens)
            told = depth <= ids
            blocks.add((j, *request.chain[depth - 1]) if told else (j, -1, request.index))
        return blocks


@dataclass(eq=False)
class Flight:
    """A micro-batch on its way through a pipeline, and what it gives each rank at its end."""

    slot: int
    turn: int
    end: int
    due: list[list[Seat]]


@dataclass(eq=False)
class Engine:
    index: int
    ranks: list[Rank] = field(default_factory=list)
    flights: list[Flight] = field(default_factory=list)
    # Requests whose rank it chose, and when it last looked at the loads.
    dealt: int = 0
    told: int = 0
    stage_free: list[int] = field(default_factory=list)
    stage_lasts: list[int] = field(default_factory=list)
    slot: int = 0
    turn: int = 0
    filled: bool = False
    busy: bool = False
    start: int = 0
    end: int = 0
    lasts: int = -1
    looks: bool = False


def named(seat: Seat) -> list[Column]:
    """All named columns of a seat."""
    return [*seat.columns, *seat.windows.values()]


def stepping(rank: Rank) -> list[Seat]:
    """Who gets a token of the step that is filled."""
    return [] if rank.rests else decoding_in(rank)


def decoding_in(rank: Rank) -> list[Seat]:
    """Who decodes in the step that is filled. In a pipeline: nobody whose next token is on its way,
    or, asynchronously, too few steps ago; with SGLang who is in the slot."""
    engine = rank.engine

    def ready(seat: Seat) -> bool:
        if rank.spec.reserve is not None:
            return seat.slot == engine.slot
        if rank.spec.batches_in_flight > 1:
            return seat.eligible <= engine.turn
        return seat.flight is None

    return [s for s in rank.running if s.state in ("decoding", "fresh") and ready(s)]


def mixes(spec: PoolSpec) -> bool:
    """Whether SGLang lets decodes join steps that prefill: not with drafts, not in a pipeline."""
    asked = spec.reserve is not None and spec.reserve.mixed
    return asked and spec.curve.drafts == 0 and not spec.curve.later


def first_share(spec: PoolSpec) -> int:
    return round(spec.reserve.first * SHARE) if spec.reserve else 0


def covered(request: Request) -> int:
    return min(request.isl, len(request.chain) * request.id_tokens)


def key_of(request: Request, j: int, block: int) -> tuple[int, ...]:
    """The tokens up to the end of a block; past what ids name, the request's own."""
    if (j + 1) * block > covered(request):
        return (j, -1, request.index)
    depth = ((j + 1) * block - 1) // request.id_tokens
    return (j, *request.chain[depth])


class Load(NamedTuple):
    """Decodes with their context, and prompt tokens with the pairs they form and what precedes."""

    n: int
    context: int
    chunk: int = 0
    pairs: int = 0
    before: int = 0


@dataclass(eq=False)
class Flow:
    request: Request
    source: Rank
    sink: Rank
    work: int
    at: int
    joined: bool = False
    since: int = 0


@dataclass(eq=False)
class Reload:
    """Blocks on their way from host memory to a seat."""

    seat: Seat
    keys: list[tuple[int, ...]]
    work: int
    since: int
    at: int
    item: int


class Oracle:
    """One run. `requests` and `ranks` hold the result."""

    def __init__(self, world: World, trace: Trace, seed: int, closed: bool) -> None:
        self.world = world
        self.now = 0
        self.split = len(world.pools) == 2
        self.specs = sorted(world.pools, key=lambda p: p.role != "prefill")
        self.engines: list[Engine] = []
        self.ranks: list[Rank] = []
        for spec in self.specs:
            for _ in range(spec.replicas):
                engine = Engine(len(self.engines))
                self.engines.append(engine)
                for _ in range(spec.dp):
                    queue = [Block() for _ in range(max(0, spec.kv_blocks - 1))]
                    rank = Rank(len(self.ranks), engine, spec, queue)
                    rank.share = first_share(spec)
                    self.ranks.append(rank)
                    engine.ranks.append(rank)
        self.closed = closed
        self.requests = self._requests(trace, seed)
        self.arrivals = {
            r.index: picos(float(trace.arrive_s[r.index])) + self.front(r)
            for r in self.requests
            if not (closed and any(o.next is r for o in self.requests))
        }
        self.flows: list[Flow] = []
        self.leases: list[tuple[int, Request]] = []
        self.deadlines: dict[int, int] = {}
        self.patience: dict[int, int] = {}
        self.turns = [0, 0]
        self.sticky: dict[tuple[int, int], list[Rank]] = {}
        # Per side: which target was last sent each start of a prompt, least recent first.
        self.lost = False
        self.trees: tuple[dict[tuple[int, ...], list[list[Rank]]], ...] = ({}, {})

    def front(self, r: Request) -> int:
        """What a request takes from its client to the router."""
        return picos(self.world.front_s) + r.isl * picos(self.world.front_token_s)

    def _requests(self, trace: Trace, seed: int) -> list[Request]:
        decoder = self.specs[-1]
        rate = rates(seed, trace.osl.astype(np.int64) - 1, decoder.curve.drafts, decoder.acceptance)
        lot = lots(seed, len(trace))
        out: list[Request] = []
        known: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}
        adopted: set[tuple[int, ...]] = set()
        for i in range(len(trace)):
            ids = [
                int(x) for x in trace.block_ids[trace.block_starts[i] : trace.block_starts[i + 1]]
            ]
            r = Request(
                i,
                int(trace.isl[i]),
                int(trace.osl[i]),
                picos(float(trace.think_s[i])),
                int(rate[i]),
                [],
                session=int(trace.session[i]),
                lots=tuple(int(x) for x in lot[i]),
            )
            r.id_tokens = max(1, trace.block_tokens)
            earlier = [
                p for p in out if p.session == r.session and trace.turn[p.index] < trace.turn[i]
            ]
            before = max(earlier, key=lambda p: int(trace.turn[p.index]), default=None)
            parent: tuple[int, ...] = ()
            for depth, name in enumerate(ids):
                if (parent, name) not in known:
                    chain = (*parent, name)
                    if before is not None and before.isl % trace.block_tokens:
                        end = before.isl // trace.block_tokens
                        same = (
                            depth == end
                            and len(before.chain) == end + 1
                            and (depth == 0 or before.chain[depth - 1] == parent)
                        )
                        if same and before.chain[end] not in adopted:
                            chain = before.chain[end]
                            adopted.add(chain)
                    known[parent, name] = chain
                parent = known[parent, name]
                r.chain.append(parent)
            if before is not None:
                before.next = r
                own = len(before.chain)
                if (
                    own
                    and covered(before) == before.isl
                    and r.isl >= before.isl + before.osl
                    and len(r.chain) >= own
                    and r.chain[own - 1] == before.chain[own - 1]
                ):
                    before.after = r
            out.append(r)
        return out

    # Events -----------------------------------------------------------------------------------

    def run(self) -> None:
        while True:
            events: list[tuple[int, int, int]] = []
            events += [(e.end, END, e.index) for e in self.engines if e.busy]
            events += [(f.at, FLOW, f.request.index) for f in self.flows]
            # Reloads come after transfers, those of decode instances last.
            events += [(x.at, FLOW, x.item) for k in self.ranks for x in k.reloads]
            events += [(at, LEASE, i) for i, (at, _) in enumerate(self.leases)]
            events += [(at, ARRIVAL, i) for i, at in self.arrivals.items()]
            for i, at in self.deadlines.items():
                if not self.requests[i].over and self.requests[i].first_token < 0:
                    # Requests time out in order of arrival.
                    place = list(self.deadlines).index(i)
                    events.append((at, TIMEOUT, place))
            for place, (i, at) in enumerate(self.patience.items()):
                if not self.requests[i].over:
                    events.append((at, ABORT, place))
            first = min(events, default=None)
            looking = [e for e in self.engines if e.looks]
            if looking and (first is None or first[0] > self.now):
                self.begin(looking[0])
                continue
            if first is None:
                return
            self.now, kind, index = first
            if kind == END:
                self.complete(self.engines[index])
            elif kind == FLOW:
                reload = [x for k in self.ranks for x in k.reloads if x.item == index]
                if reload:
                    self.reloaded(reload[0])
                else:
                    self.move(next(f for f in self.flows if f.request.index == index))
            elif kind == LEASE:
                _, request = self.leases.pop(index)
                self.release_source(request)
            elif kind == ARRIVAL:
                del self.arrivals[index]
                self.arrive(self.requests[index])
            elif kind == TIMEOUT:
                late = list(self.deadlines)[index]
                del self.deadlines[late]
                self.give_up(self.requests[late], TIMED_OUT)
            else:
                late = list(self.patience)[index]
                del self.patience[late]
                self.give_up(self.requests[late], ABORTED)

    def look(self, rank: Rank) -> None:
        """An idle engine looks at its queues now; a busy one does so after its step anyway."""
        if not rank.engine.busy:
            rank.engine.looks = True

    # Routing ----------------------------------------------------------------------------------

    def choose(self, r: Request, side: int, ranks: list[Rank]) -> Rank:
        """An instance that names the rank of a request is one target of its router, unless that
        one knows what each rank holds."""
        routing = self.world.decode_routing if side else self.world.routing
        if ranks[0].spec.ranks == "router" or routing in ("prefix_aware", "linear"):
            return self.routed(r, side, routing, [[k] for k in ranks])[0]
        engines = dict.fromkeys(k.engine for k in ranks)
        targets = [[k for k in ranks if k.engine is engine] for engine in engines]
        target = self.routed(r, side, routing, targets)
        return target[0] if len(target) == 1 else self.rank_of(r, target)

    def rank_of(self, r: Request, ranks: list[Rank]) -> Rank:
        engine, choice = ranks[0].engine, ranks[0].spec.ranks
        if choice == "lot":
            return ranks[(r.lots[1] >> 16) % len(ranks)]
        turn = engine.dealt % len(ranks)
        engine.dealt += 1
        if choice == "turn":
            return ranks[turn]
        in_turn = ranks[turn:] + ranks[:turn]
        if choice == "in_flight":

            def score(k: Rank) -> float:
                usage = 1.0 - len(k.queue) / k.usable
                return k.load + len(k.waiting) * 6.0 * max(0.0, usage - 0.5)

            return min(in_turn, key=score)
        every = PICOS // 10 if choice == "queue" else PICOS // 50
        if engine.dealt == 1 or self.now - engine.told >= every:
            engine.told = self.now
            for k in ranks:
                tokens = self.used(k) * k.spec.block_tokens
                seen = {"queue": k.load + 3 * len(k.waiting), "requests": k.load, "tokens": tokens}
                k.seen = seen[choice]
        best = min(in_turn if choice == "queue" else ranks, key=lambda k: k.seen)
        best.seen += {"queue": 4, "requests": 1, "tokens": r.isl}[choice]
        return best

    def routed(self, r: Request, side: int, routing: str, targets: list[list[Rank]]) -> list[Rank]:
        a, b = r.lots[2 * side], r.lots[2 * side + 1]

        load = self.load_of
        by_load = min(targets, key=load)
        if routing == "random":
            return targets[a % len(targets)]
        if routing == "round_robin":
            self.turns[side] += 1
            return targets[(self.turns[side] - 1) % len(targets)]
        if routing == "least_requests":
            return by_load
        if routing == "power_of_two":
            if len(targets) == 1:
                return targets[0]
            one = a % len(targets)
            two = (one + 1 + b % (len(targets) - 1)) % len(targets)
            return min((targets[one], targets[two]), key=load)
        if routing == "session":
            return self.sticky.setdefault((r.session, side), by_load)
        if routing == "prefix_approx":
            return self.approximate(r, side, [load(target)[0] for target in targets], by_load)
        if routing == "least_kv":
            return min(targets, key=lambda t: (sum(self.used(k) for k in t), *load(t)))
        ranks = [k for (k,) in targets]
        if routing == "linear":
            return [max(ranks, key=lambda k: (self.score(r, k, ranks), -k.load, -k.index))]

        costs = [self.dynamo(r, side, k) for k in ranks]
        equals = [k for k, cost in zip(ranks, costs, strict=True) if cost == min(costs)]
        return [equals[a % len(equals)]]

    def dynamo(self, r: Request, side: int, k: Rank) -> int:
        """Prompts on decode instances count each whole, on prefill instances not at all."""
        backlog = sum(tokens for request, tokens in k.sent.items() if request.prefill_end < 0)
        block, new = k.spec.block_tokens, r.isl - k.known(r)
        if side == 1:
            planned = sum(request.isl // block for request in k.sent) + r.isl // block
            return planned * block - k.known(r)
        if self.split:
            return backlog + new
        prompts = set().union(*(k.prompt_blocks(request) for request in (*k.sent, r)))
        return backlog + new + len(prompts) * block

    @staticmethod
    def load_of(target: list[Rank]) -> tuple[int, int]:
        """Requests of a target, then its place."""
        return (sum(k.load for k in target), target[0].index)

    def score(self, r: Request, rank: Rank, ranks: list[Rank]) -> float:
        queues = [len(k.waiting) for k in ranks]
        queue = 1.0
        if max(queues) > min(queues):
            queue = (max(queues) - len(rank.waiting)) / (max(queues) - min(queues))
        cached = rank.hits(r, r.isl) * rank.spec.block_tokens / r.isl
        free = len(rank.queue) / rank.usable
        scores = self.world.scores
        return scores.cache_weight * cached + scores.load_weight * (queue + free)

    def approximate(
        self, r: Request, side: int, loads: list[int], by_load: list[Rank]
    ) -> list[Rank]:
        settings = self.world.tree
        if settings.lost_s is not None and self.now >= picos(settings.lost_s) and not self.lost:
            self.lost = True
            self.trees = ({}, {})
        tree = self.trees[side]
        starts = r.chain[: math.ceil(covered(r) / r.id_tokens)]
        known = 0
        while known < len(starts) and starts[known] in tree:
            known += 1
        uneven = max(loads) - min(loads) > settings.balance_abs
        uneven = uneven and max(loads) > min(loads) * settings.balance_rel
        chosen = by_load
        tokens = min(known * r.id_tokens, covered(r))
        if not uneven and tokens > settings.cache_threshold * r.isl:
            holders = tree[starts[known - 1]]
            chosen = holders[0]
            if settings.holder == "lightest":
                chosen = min(holders, key=self.load_of)
        for start in reversed(starts):
            tree[start] = [*tree.pop(start, []), chosen]
        while len(tree) > settings.tokens // r.id_tokens:
            del tree[next(iter(tree))]
        return chosen

    @staticmethod
    def used(rank: Rank) -> int:
        return rank.usable - len(rank.queue) + rank.demand

    # Requests ---------------------------------------------------------------------------------

    def fits(self, r: Request, spec: PoolSpec) -> bool:
        rank = next(k for k in self.ranks if k.spec is spec)
        last = r.isl + 2 * rank.drafts + (0 if spec.role == "prefill" else r.osl - 1)
        blocks = rank.held_blocks(last, max(spec.in_flight, spec.token_budget))
        # A hybrid reads a state while it writes one.
        return blocks + (rank.width if rank.states else 0) <= rank.usable

    def arrive(self, r: Request) -> None:
        r.arrive = self.now - self.front(r)
        if not self.fits(r, self.specs[-1]):
            self.end(r, INFEASIBLE)
            return
        if not self.split:
            rank = self.choose(r, 0, self.ranks)
            r.prefill_rank = r.decode_rank = rank.index
            self.enter(r, rank, "p")
            return
        prefills = [k for k in self.ranks if k.spec.role == "prefill"]
        decodes = [k for k in self.ranks if k.spec.role == "decode"]
        d = self.choose(r, 1, decodes)
        if self.world.direct_below > 0:
            new = r.isl - d.hits(r, r.isl) * d.spec.block_tokens
            if new < self.world.direct_below:
                r.prefill_rank = r.decode_rank = d.index
                self.enter(r, d, "d")
                return
        link = self.world.link
        assert link is not None
        if not self.fits(r, self.specs[0]) or not link.bandwidth > 0:
            self.end(r, INFEASIBLE)
            return
        p = self.choose(r, 0, prefills)
        r.prefill_rank, r.decode_rank = p.index, d.index
        seat = Seat(r, d, local=False, state="coming")
        r.seats["d"] = seat
        d.load += 1
        d.sent[r] = 0
        d.expect(seat, d.held_blocks(r.isl, 1))
        if link.reserve_first:
            self.wait_for(r, p, "p").state = "coming"
            self.enqueue(r)
        else:
            self.enter(r, p, "p")

    def enter(self, r: Request, rank: Rank, side: str) -> None:
        self.line_up(self.wait_for(r, rank, side))

    def line_up(self, seat: Seat) -> None:
        seat.state = "waiting"
        seat.rank.waiting.append(seat)
        self.look(seat.rank)

    def wait_for(self, r: Request, rank: Rank, side: str) -> Seat:
        """A rank computes the request some time, for which its client waits from now on."""
        seat = Seat(r, rank, local=True, target=r.isl)
        r.seats[side] = seat
        rank.load += 1
        rank.sent[r] = r.isl - rank.known(r)
        rank.expect(seat, rank.held_blocks(r.isl, 1))
        if self.world.timeout_s is not None:
            self.deadlines[r.index] = self.now + picos(self.world.timeout_s)
        if self.world.abort_s is not None:
            self.patience[r.index] = self.now + picos(self.world.abort_s)
        return seat

    def end(self, r: Request, outcome: int) -> None:
        r.outcome = outcome
        r.over = True
        r.end = self.now
        if self.closed and r.next is not None:
            self.arrivals[r.next.index] = self.now + r.next.think + self.front(r.next)

    def finish(self, seat: Seat) -> None:
        r, rank = seat.request, seat.rank
        rank.running.remove(seat)
        rank.shut = False
        rank.name_before_going(seat, min(r.isl + r.osl - 1, covered(r.told)))
        rank.release(seat)
        rank.expect(seat, 0)
        rank.load -= 1
        del rank.sent[seat.request]
        seat.state = "out"
        self.end(r, DONE)

    def give_up(self, r: Request, outcome: int) -> None:
        link = self.world.link
        d, p = r.seats.get("d"), r.seats.get("p")
        pulling = d is not None and d.state == "pulling"
        if d is not None:
            self.withdraw(d)
        if p is not None:
            if p.state == "held" and not pulling:
                assert link is not None
                self.leases.append((self.now + picos(link.lease_s), r))
            self.withdraw(p)
        self.end(r, outcome)

    def withdraw(self, seat: Seat) -> None:
        if seat.state in ("out", "held", "pulling", "reloading"):
            return
        if seat.state in ("filling", "fresh", "decoding", "ending") and seat.rank.engine.busy:
            seat.gone = True
            return
        if seat.state != "coming":
            self.look(seat.rank)
        self.drop(seat)

    def drop(self, seat: Seat) -> None:
        rank = seat.rank
        for places in (rank.waiting, rank.ready, rank.running):
            if seat in places:
                places.remove(seat)
                rank.shut = rank.shut and places is not rank.running
        if seat.state in ("filling", "decoding", "ending"):
            told = seat.request.told
            rank.name_before_going(seat, min(seat.in_cache(), covered(told)))
        rank.release(seat)
        seat.promised = 0
        rank.expect(seat, 0)
        rank.load -= 1
        del rank.sent[seat.request]
        seat.state = "out"

    # Steps ------------------------------------------------------------------------------------

    def begin(self, engine: Engine) -> None:
        engine.looks = False
        ahead = engine.ranks[0].spec.batches_in_flight > 1
        if engine.ranks[0].spec.curve.later:
            if ahead:
                self.fill_ahead(engine)
            else:
                self.fill_pipeline(engine)
            return
        if engine.lasts < 0:
            self.compose(engine)
        if engine.lasts < 0:
            engine.looks = any(rank.preempted for rank in engine.ranks)
            return
        engine.busy = True
        engine.start = self.now
        engine.end = self.now + engine.lasts
        engine.lasts = -1
        for rank in engine.ranks:
            if rank.kind:
                rank.steps[rank.kind] += 1
        if ahead:
            self.advance(engine)
            self.compose(engine)

    def fill_pipeline(self, engine: Engine) -> None:
        """Send micro-batches off until there is one for each stage, or nothing is left to send."""
        stages = engine.ranks[0].spec.curve.stages
        while len(engine.flights) < len(stages):
            taken = {flight.slot for flight in engine.flights}
            free = [slot for slot in (engine.slot, *range(len(stages))) if slot not in taken]
            self.fill_slot(engine, free[0])
            if engine.lasts >= 0:
                self.send_off(engine)
            elif not any(rank.preempted for rank in engine.ranks):
                return

    def fill_ahead(self, engine: Engine) -> None:
        """With asynchronous scheduling steps are numbered, empty ones too. One is filled when the
        one before it leaves, and leaves when the one as many before it as there are stages has
        passed; a request may decode again as many steps later."""
        stages = len(engine.ranks[0].spec.curve.stages)
        while not engine.flights or engine.turn - engine.flights[0].turn < stages:
            if not engine.filled or (not engine.flights and engine.lasts < 0):
                self.fill_slot(engine, engine.turn % stages)
            engine.filled = False
            if engine.lasts >= 0:
                self.send_off(engine)
            elif not engine.flights:
                if any(rank.preempted for rank in engine.ranks):
                    continue
                return
            engine.turn += 1
            self.fill_slot(engine, engine.turn % stages)
            engine.filled = True

    def fill_slot(self, engine: Engine, slot: int) -> None:
        engine.slot = slot
        engine.lasts = -1
        self.compose(engine)
        stages = engine.ranks[0].spec.curve.stages
        engine.stage_lasts = [self.step_seconds(engine, stage) for stage in stages]

    def send_off(self, engine: Engine) -> None:
        """The batch that was filled goes through the stages, behind the one before it."""
        at = self.now
        stages = len(engine.stage_lasts)
        engine.stage_free = engine.stage_free or [0] * stages
        for i, lasts in enumerate(engine.stage_lasts):
            at = engine.stage_free[i] = max(at, engine.stage_free[i]) + lasts
        flight = Flight(engine.slot, engine.turn, at, [])
        aboard: list[Seat] = []
        for rank in engine.ranks:
            rank.busy += sum(engine.stage_lasts) // stages
            if rank.kind:
                rank.steps[rank.kind] += 1
            aboard += stepping(rank)
        self.advance(engine)
        for rank in engine.ranks:
            aboard += rank.due
            flight.due.append(rank.due)
            rank.due = []
        for seat in aboard:
            seat.flight, seat.slot, seat.eligible = flight, engine.slot, engine.turn + stages
        engine.flights.append(flight)
        engine.busy = True
        engine.end = engine.flights[0].end

    def compose(self, engine: Engine) -> None:
        """Fill the next step."""
        if engine.ranks[0].spec.reserve is not None:
            for rank in engine.ranks:
                self.schedule_prefills(rank)
        prefilling = [rank for rank in engine.ranks if any(s.chunk for s in rank.running)]
        for rank in engine.ranks:
            if rank.spec.reserve is None:
                self.schedule(rank)
            else:
                joins = mixes(rank.spec) and not self.lacking(rank)
                rank.rests = rank in prefilling and not joins
                if rank.drafts and prefilling:
                    rank.rests = True
                if not rank.rests and rank in prefilling:
                    self.grow_decodes(rank)
                    done = [s for s in rank.running if s.chunk and s.computed + s.chunk == s.target]
                    if decoding_in(rank):
                        rank.running = done + [s for s in rank.running if s not in done]
                    rank.shut = False
                elif not rank.rests:
                    self.schedule_decodes(rank)
            chunks = any(s.chunk for s in rank.running)
            decodes = bool(stepping(rank))
            rank.kind = ("m" if chunks else "d") if decodes else "p" if chunks else ""
            rank.log.append((self.now, *rank.state()))
        engine.lasts = self.step_seconds(engine, engine.ranks[0].spec.curve)

    def step_seconds(self, engine: Engine, curve: StepCurve) -> int:
        """What the filled step lasts in a stage; -1 if there is nothing in it."""
        shared = curve.together
        loads = [self.load(rank) for rank in engine.ranks]
        chunks = any(load.chunk for load in loads)
        if shared is not None and len(engine.ranks) > 1 and chunks:
            tokens = [load.n * (1 + engine.ranks[0].drafts) + load.chunk for load in loads]
            if max(tokens) > shared.padded:
                own = max(
                    self.seconds(rank, curve, eager=True) - int(shared.work[count])
                    for rank, count in zip(engine.ranks, tokens, strict=True)
                    if count
                )
                mean = -(-sum(tokens) // len(engine.ranks))
                return max(own + int(shared.work[mean]), shared.least)
        return max(self.seconds(rank, curve) for rank in engine.ranks)

    def advance(self, engine: Engine) -> None:
        """Every request stands as it will after the step; what the step gives is due at its end."""
        for rank in engine.ranks:
            ended = []
            fresh = [s for s in rank.running if s.state == "fresh"]
            for seat in stepping(rank):
                if seat.state == "decoding":
                    seat.stepped += 1
                    if seat.tokens() >= seat.request.osl:
                        ended.append(seat)
            if rank.spec.reserve is None:
                ended.sort(key=lambda s: s.request.index)
            for seat in ended:
                seat.state = "ending"
                rank.due.append(seat)
            for seat in rank.running:
                if seat in fresh:
                    self.sample(seat)
                elif seat.state == "filling" and seat.chunk:
                    seat.computed += seat.chunk
                    seat.chunk = 0
                    if seat.computed == seat.target:
                        self.sample(seat)

    def sample(self, seat: Seat) -> None:
        seat.rank.due.append(seat)
        if seat.rank.spec.role != "prefill":
            seat.got += 1
            if seat.got < seat.request.osl:
                seat.state = "decoding"
                seat.stepped = 0
                seat.late = seat.rank.states
                if not seat.late:
                    self.trim(seat, seat.request.isl + seat.got - 1 + seat.rank.drafts)
                return
        seat.state = "ending"

    @staticmethod
    def load(rank: Rank) -> Load:
        """What a rank computes in the step that it was filled for."""
        seats = stepping(rank)
        context = 0
        for s in seats:
            rate = ONE if s.state == "fresh" else s.request.rate
            context += (s.request.isl + s.got) * ONE + s.stepped * rate
        context >>= 20
        chunk = pairs = before = 0
        lone = []
        for s in rank.running:
            if s.state == "filling":
                chunk += s.chunk
                if s.chunk == 1:
                    lone.append(s.computed + 1)
                pairs += sum(s.computed + i + 1 for i in range(s.chunk))
                before += s.computed if s.chunk else 0
        if chunk == len(lone) and rank.spec.reserve is None and (seats or not rank.drafts):
            # A prompt's one token left is a decode like the others.
            return Load(len(seats) + len(lone), context + sum(lone))
        return Load(len(seats), context, chunk, pairs, before)

    def seconds(self, rank: Rank, curve: StepCurve, eager: bool = False) -> int:
        load = self.load(rank)
        if not load.n and not load.chunk:
            return -1
        work = int(curve.decode[load.n])
        if load.chunk or eager:
            work = int(curve.mixed[load.n * (1 + curve.drafts) + load.chunk])
            work += int(curve.mixed_decode[load.n]) if curve.mixed_decode is not None else 0
        walk = curve.prefill_pair * load.pairs + curve.prefill_prefix * load.before
        return work + int(curve.decode_context[load.n]) * load.context + walk

    def schedule(self, rank: Rank) -> None:
        spec = rank.spec
        k = rank.drafts
        rank.preempted = False
        for seat in rank.running:
            seat.chunk = 0
            if seat.late and seat.state == "decoding":
                seat.late = False
                self.trim(seat, seat.request.isl + seat.got - 1 + k)
        for seat in list(rank.running):
            if seat.state == "decoding" and seat in decoding_in(rank):
                tokens = seat.request.isl + seat.tokens() + 2 * k
                if rank.tail and not rank.states:
                    rank.slide(seat, rank.behind(seat.request.isl + seat.tokens() - 1))
                if not self.grow(rank, seat, rank.held_blocks(tokens, 1 + k)):
                    break
        budget = spec.token_budget - len(decoding_in(rank)) * (1 + k)
        budget = self.continue_prefills(rank, budget)
        if not rank.preempted:
            self.admit(rank, budget)

    # SGLang -----------------------------------------------------------------------------------

    def schedule_prefills(self, rank: Rank) -> None:
        rank.preempted = False
        for seat in rank.running:
            seat.chunk = 0
        block = rank.spec.block_tokens
        budget = rank.spec.token_budget - self.joining(rank)
        if any(seat.state == "filling" for seat in rank.running):
            rank.shut = False
            budget = min(budget, self.room_for_chunk(rank, budget))
            budget = self.continue_prefills(rank, budget)
        if not rank.preempted:
            self.admit(rank, budget)
        chunks = [seat.chunk for seat in rank.running if seat.chunk]
        if sum(count for _, count in rank.owed) > 0 and block > 1:
            rank.evict(rank.full * (math.ceil(sum(chunks) / block) + len(chunks)))
        rank.pay()

    def schedule_decodes(self, rank: Rank) -> None:
        reserve = rank.spec.reserve
        assert reserve is not None
        if not rank.running:
            rank.share = first_share(rank.spec)
        if self.lacking(rank):
            if self.coming(rank, ("ending",)):
                rank.rests = True
                return
            while decoding_in(rank) and self.lacking(rank):
                self.preempt(self.in_order(rank)[-1])
                if rank.leaves:
                    lasting = reserve.retract_steps * len(decoding_in(rank))
                    rank.evict(rank.full * math.ceil(lasting / rank.spec.block_tokens))
            left = self.in_order(rank)
            rank.running = left + [seat for seat in rank.running if seat not in left]
            rank.share = first_share(rank.spec)
            if left:
                done = sum(self.seen(s) for s in left) + reserve.retract_steps * len(left)
                rank.share = min(SHARE, done * SHARE // (sum(s.request.osl for s in left) + 1))
        elif decoding_in(rank):
            fall = round((reserve.first - reserve.least) / reserve.fall_steps * SHARE)
            rank.share = max(round(reserve.least * SHARE), rank.share - fall)
        self.grow_decodes(rank)

    def in_order(self, rank: Rank) -> list[Seat]:
        """Who decodes, in the order in which they would be kept."""
        seats = decoding_in(rank)
        return sorted(seats, key=lambda s: (-self.seen(s), s.request.isl))

    @staticmethod
    def coming(rank: Rank, states: tuple[str, ...]) -> list[Seat]:
        """Who is in such a state by a token that the step in progress is to give."""
        if rank.spec.batches_in_flight == 1 or rank.spec.curve.later or not rank.engine.busy:
            return []
        return [seat for seat in rank.due if seat.state in states]

    def unseen(self, seat: Seat) -> int:
        """Tokens that a decode step in progress is to give a request."""
        rank = seat.rank
        if rank.spec.batches_in_flight == 1 or rank.spec.curve.later or not rank.engine.busy:
            return 0
        if rank.kind not in ("d", "m") or not seat.stepped:
            return 0
        return seat.tokens() - (seat.got + ((seat.stepped - 1) * seat.request.rate >> 20))

    def seen(self, seat: Seat) -> int:
        due = seat.rank.due if seat.rank.spec.role != "decode" else []
        return seat.tokens() - self.unseen(seat) - (seat in due)

    def joining(self, rank: Rank) -> int:
        """Decodes that take a token of a step that prefills."""
        if not mixes(rank.spec):
            return 0
        due = rank.due if rank.spec.batches_in_flight > 1 else []
        return len(decoding_in(rank)) + sum(seat.state == "ending" for seat in due)

    def room_for_chunk(self, rank: Rank, budget: int) -> int:
        if not decoding_in(rank) or rank.full == 0:
            return budget
        room = rank.free // rank.full * rank.spec.block_tokens - self.joining(rank)
        room -= -(-self.decoding(rank) * rank.share // SHARE)
        return room if room > 0 else budget

    def grow_decodes(self, rank: Rank) -> None:
        # Blocks that are given back are free for those that are taken.
        if rank.leaves and rank.spec.block_tokens > 1:
            rank.evict(rank.full * len(decoding_in(rank)))
        for seat, total in sorted(self.totals(rank), key=lambda x: x[1] - self.blocks_of(x[0])):
            rank.resize(seat, total)

    @staticmethod
    def totals(rank: Rank) -> list[tuple[Seat, int]]:
        """What every decode will hold in its next step."""
        k = rank.drafts
        seats = decoding_in(rank)
        return [(s, rank.held_blocks(s.request.isl + s.tokens() + 2 * k, 1 + k)) for s in seats]

    def lacking(self, rank: Rank) -> bool:
        totals = self.totals(rank)
        have = sum(self.blocks_of(seat) for seat, _ in totals)
        return sum(total for _, total in totals) - have > len(rank.queue)

    @staticmethod
    def blocks_of(seat: Seat) -> int:
        return seat.rank.blocks_of(seat)

    def output_left(self, seat: Seat) -> int:
        reserve = seat.rank.spec.reserve
        assert reserve is not None
        if seat.rank.spec.role == "prefill":
            return 1
        got = seat.tokens() - (self.unseen(seat) if seat.state == "decoding" else 0)
        return min(seat.request.osl - got, reserve.horizon)

    def decoding(self, rank: Rank) -> int:
        """Tokens that decoding requests may still generate, as the scheduler sees it."""
        left = sum(self.output_left(seat) for seat in decoding_in(rank))
        ahead = rank.spec.batches_in_flight > 1 and not rank.spec.curve.later
        return left + (len(rank.due) if ahead and rank.spec.role != "prefill" else 0)

    def outputs(self, rank: Rank) -> int:
        """Tokens to keep for others: all outputs of those whose prompts this step completes, a
        block for each chunk, a share of the outputs of decoding requests."""
        block = rank.spec.block_tokens
        whole = self.joining(rank)
        for seat in rank.running:
            if seat.state == "filling" and seat.chunk:
                end = seat.computed + seat.chunk
                new = math.ceil(end / block) - math.ceil(seat.computed / block)
                whole += (1 + math.ceil(seat.chunk / block) - new) * block
                if end == seat.target:
                    whole += self.output_left(seat) + seat.got
        return whole + self.decoding(rank) * rank.share // SHARE

    def nothing_left(self, rank: Rank) -> bool:
        return rank.full * self.outputs(rank) >= rank.free * rank.spec.block_tokens

    def here_or_coming(self, rank: Rank) -> int:
        """Requests that a decode rank runs, or has reserved blocks for."""
        seats = [s for other in self.requests for s in other.seats.values() if s.rank is rank]
        coming = [s for s in seats if s.state in ("reserved", "pulling", "flowed", "loaded")]
        return len(rank.running) + len(coming)

    @staticmethod
    def kept_for_each(rank: Rank) -> int:
        reserve = rank.spec.reserve
        assert reserve is not None
        return rank.full * math.ceil(reserve.remote / rank.spec.block_tokens)

    def remote_room(self, rank: Rank, new: Request) -> int:
        """Blocks to keep when a decode rank reserves: for each of its requests and the new one; or
        as many as the longest of them needs to end when all who run but it have been retracted."""
        reserve = rank.spec.reserve
        count = self.here_or_coming(rank)
        if reserve is None or count == 0:
            return 0
        running = decoding_in(rank)
        given_up = sum(s.request.isl + s.tokens() for s in running)

        def blocks(tokens: int) -> int:
            return rank.full * math.ceil(max(0, tokens) / rank.spec.block_tokens)

        ends = [s.request.isl + min(s.request.osl, reserve.horizon) for s in running]
        single = blocks(max(ends, default=0) - given_up)
        own = blocks(min(new.osl, reserve.horizon) - given_up)
        each = self.kept_for_each(rank)
        return max(each, own) + max(each * count, single)

    def resume(self, rank: Rank, seat: Seat) -> bool:
        """The KV of a retracted request comes back from host memory."""
        if any(seat in due for f in rank.engine.flights for due in f.due):
            return False
        k, r = rank.drafts, seat.request
        blocks = rank.held_blocks(r.isl + seat.got - 1 + k, 1 + k)
        next_step = rank.held_blocks(r.isl + seat.got + 2 * k, 1 + k)
        count = self.here_or_coming(rank)
        spare = self.kept_for_each(rank) * (count + 1) if count else 0
        if max(blocks + spare, next_step) > len(rank.queue):
            return False
        rank.waiting.remove(seat)
        rank.resize(seat, blocks)
        rank.expect(seat, 0)
        seat.slot = rank.engine.slot
        seat.state = "decoding"
        rank.running.append(seat)
        return True

    def look_over(self, rank: Rank, most: int) -> None:
        """Before SGLang admits it sorts the queue, or, now and then, uses what that will find."""
        full = rank.shut or len(rank.running) >= most
        filling = any(seat.state == "filling" for seat in rank.running)
        queue = [seat for seat in rank.waiting if seat.state != "parked"]
        if not queue or rank.spec.role == "decode" or (full and not filling):
            return
        reserve = rank.spec.reserve
        assert reserve is not None
        if reserve.longest_first and len(queue) <= 128:
            self.longest_first(rank)
            return
        if rank.looks % 32 == 0:
            for seat in reversed(queue[:128]):
                self.found(rank, seat)
        rank.looks += 1

    @staticmethod
    def found(rank: Rank, seat: Seat) -> int:
        told = seat.request.told
        found = rank.cached(told, rank.most_hits(told, seat.target + 1))
        rank.touch(told, found)
        return max(0, found - rank.hybrid) * rank.spec.block_tokens

    def longest_first(self, rank: Rank) -> None:
        """Sort the queue by what the cache has; of those of whom it has little and who begin alike
        all but the first go last."""
        found: dict[int, int] = {}
        alone: list[tuple[int, ...]] = []
        for seat in rank.waiting:
            r = seat.request
            tokens = self.found(rank, seat)
            at_host = rank.hits_on_host(seat) * rank.spec.block_tokens
            found[r.index] = min(tokens + at_host, seat.target - 1)
            if tokens <= 32:
                start = r.chain[31 // r.id_tokens] if covered(r) >= 32 else ()
                if start and start in alone:
                    found[r.index] = -1
                elif start and found[r.index] <= 32:
                    alone.append(start)
        rank.waiting.sort(key=lambda seat: -found[seat.request.index])

    def receive(self, seat: Seat) -> None:
        """The first token came with the KV; it leaves at the end of a step that runs."""
        engine = seat.rank.engine
        if engine.busy and not seat.rank.spec.curve.later and seat.request.osl > 1:
            seat.rank.due.append(seat)
        else:
            seat.request.first_token = self.now
        seat.got = 1
        seat.slot = seat.rank.engine.slot
        seat.rank.running.append(seat)
        if seat.request.osl == 1:
            self.finish(seat)
            return
        seat.state = "decoding"
        self.trim(seat, seat.request.isl + seat.rank.drafts)

    # vLLM -------------------------------------------------------------------------------------

    def continue_prefills(self, rank: Rank, budget: int) -> int:
        for seat in list(rank.running):
            if seat.state == "filling" and seat in rank.running:
                chunk = self.chunk_of(rank, seat, budget)
                if chunk == 0:
                    continue
                total = rank.chunk_blocks(seat.computed, chunk)
                if rank.tail:
                    rank.slide(seat, rank.behind(seat.computed))
                if not self.grow(rank, seat, total):
                    break
                seat.chunk = chunk
                self.name_prompt(rank, seat)
                budget -= self.spent(rank, chunk)
        return budget

    @staticmethod
    def spent(rank: Rank, chunk: int) -> int:
        block = rank.spec.block_tokens
        return math.ceil(chunk / block) * block if rank.spec.reserve else chunk

    def first_chunk(self, rank: Rank, seat: Seat, budget: int) -> int:
        """SGLang counts whole blocks, and cuts there."""
        block = rank.spec.block_tokens
        if rank.spec.reserve and self.spent(rank, seat.target - seat.computed) > budget:
            end = (seat.computed + budget // block * block) // block * block
            budget = max(0, end - seat.computed)
        return self.chunk_of(rank, seat, budget)

    @staticmethod
    def name_prompt(rank: Rank, seat: Seat) -> None:
        """vLLM names the blocks of a chunk as it is scheduled; SGLang with the next chunk, or when
        the prompt's last has ended."""
        tokens = seat.computed + (0 if rank.spec.reserve else seat.chunk)
        if rank.states:
            block = rank.spec.block_tokens
            # States are there at the ends of chunks only.
            seat.ends = tuple(e for e in seat.ends if not seat.computed < e * block < tokens)
            if not rank.spec.tails and tokens < seat.target:
                seat.ends += (tokens // block,)
        Oracle.name_computed(rank, seat, tokens)

    @staticmethod
    def name_computed(rank: Rank, seat: Seat, tokens: int) -> None:
        r = seat.request
        rank.name_blocks(seat, r, min(tokens, covered(r)))
        if rank.spec.reserve and tokens > r.isl:
            rank.name_blocks(seat, r.told, min(tokens, covered(r.told)))

    def grow(self, rank: Rank, seat: Seat, total: int) -> bool:
        have = rank.blocks_of(seat)
        while total - have > rank.free:
            rank.pay()
            # One whose last token is on its way keeps its blocks.
            victim = [s for s in rank.running if s.state != "ending"][-1]
            self.preempt(victim)
            if victim is seat:
                return False
        rank.resize(seat, total)
        return True

    def preempt(self, seat: Seat) -> None:
        rank = seat.rank
        coming = rank.spec.role != "decode" and seat in self.coming(rank, ("decoding",))
        lost = rank.spec.reserve is not None and (coming or self.unseen(seat) > 0)
        if lost and coming:
            rank.due.remove(seat)
        rank.running.remove(seat)
        rank.shut = False
        if not (lost and coming):
            # vLLM will find all of it that is still cached, SGLang the prompt, once it is entered.
            found = min(seat.in_cache(), seat.request.isl if rank.spec.reserve else NEVER)
            rank.name_before_going(seat, found)
        if rank.leaves:
            rank.nameless(seat.loose)
            seat.loose = []
        rank.release(seat)
        seat.got = min(seat.tokens(), seat.request.osl) - int(lost)
        seat.stepped = seat.chunk = seat.computed = seat.reloaded = 0
        seat.flight = None
        seat.target = seat.request.isl + seat.got
        # What was pulled is computed again where it was lost; SGLang copies it to host memory.
        parked = seat.state == "decoding" and rank.spec.role == "decode" and rank.spec.reserve
        seat.state, seat.local = "parked" if parked else "waiting", True
        rank.waiting.insert(len(rank.waiting) if rank.spec.reserve else 0, seat)
        rank.expect(seat, rank.held_blocks(seat.target, 1))
        rank.preempted = True
        rank.preemptions += 1
        seat.request.preemptions += 1

    @staticmethod
    def chunk_of(rank: Rank, seat: Seat, budget: int) -> int:
        chunk = min(seat.target - seat.computed, budget)
        block = rank.spec.block_tokens
        if rank.states:
            end = seat.computed + chunk
            if end < seat.target:
                end = end // block * block
            for stop in (rank.last_state(seat.target) * block, seat.stop * block):
                if seat.computed < stop < end:
                    end = stop
            return max(0, end - seat.computed)
        if rank.hybrid and rank.spec.prefix_caching:
            last = seat.target // block * block
            end = seat.computed + chunk
            if end < last:
                chunk = chunk // block * block
            elif seat.computed < last < end:
                chunk = last - seat.computed
        return chunk

    def admit(self, rank: Rank, budget: int) -> None:
        spec, k = rank.spec, rank.drafts
        most = min(spec.max_seqs, spec.token_budget // (1 + k))
        if rank.leaves:
            self.look_over(rank, most)
        parked = [s for s in rank.waiting if s.state == "parked"]
        queue = [s for s in rank.waiting if s.state != "parked"]
        spent = spec.reserve is not None and budget <= 0 and len(rank.running) < most
        if spent and queue and queue[0].local and not rank.shut and self.nothing_left(rank):
            if rank.leaves:
                told = queue[0].request.told
                rank.touch(told, rank.hits(told, queue[0].target))
            rank.shut = bool(decoding_in(rank))
        while len(rank.running) < most and budget > 0:
            if parked and self.resume(rank, parked[0]):
                del parked[0]
                budget -= mixes(spec)
                continue
            if parked and (not rank.ready or rank.running):
                return
            if rank.ready:
                seat = rank.ready[0]
                if seat.state == "reloaded":
                    have = len(seat.columns) * rank.full + len(seat.loose)
                    chunk = self.enter_batch(rank, seat, len(seat.columns), have, budget)
                    if chunk == 0:
                        return
                    rank.ready.pop(0)
                    budget -= chunk
                    continue
                if spec.reserve is not None:
                    self.receive(rank.ready.pop(0))
                    budget -= mixes(spec) and seat.request.osl > 1
                    continue
                if budget < 1 + k:
                    return
                rank.ready.pop(0)
                seat.state = "fresh"
                rank.running.append(seat)
                budget -= 1 + k
                continue
            if not queue:
                return
            seat = queue.pop(0)
            if not seat.local:
                if not self.reserve(rank, seat):
                    return
                continue
            if rank.shut or any(seat in due for f in rank.engine.flights for due in f.due):
                return
            answer = self.reload(rank, seat)
            if answer == "room":
                return
            if answer == "wait":
                continue
            hits = rank.hits(seat.request.told, seat.target)
            if rank.states:
                seat.stop = rank.junction(seat.request.told, seat.target, hits)
                if hits and rank.names_now(seat.request.told, hits):
                    return
            chunk = self.enter_batch(rank, seat, hits, 0, budget)
            if chunk == 0:
                return
            rank.waiting.remove(seat)
            budget -= self.spent(rank, chunk)
            if spec.reserve and self.nothing_left(rank):
                rank.shut = bool(decoding_in(rank))
                return

    def enter_batch(self, rank: Rank, seat: Seat, hits: int, have: int, budget: int) -> int:
        """Start a seat with its first chunk, if that and its whole input fit; 0 if not."""
        spec, k, r = rank.spec, rank.drafts, seat.request
        seat.computed = hits * spec.block_tokens
        chunk = self.chunk_of(rank, seat, budget)
        if not have:
            chunk = self.first_chunk(rank, seat, budget)
            if rank.leaves:
                rank.touch(r.told, hits)
        first = rank.chunk_blocks(seat.computed, chunk)
        whole = rank.held_blocks(seat.target + k, max(spec.in_flight, spec.token_budget))
        if rank.states and not rank.running and not hits and chunk < seat.target:
            # Alone, its next chunk must find a block to write its state to.
            whole += rank.width
        need = max(first, whole) - (have or hits * rank.full)
        if rank.tail:
            # vLLM takes all hits off what a window holds, not those alone that it reaches.
            block = spec.block_tokens
            columns = math.ceil((seat.target + k) / block)
            new = max(spec.in_flight, spec.token_budget)
            for group in spec.groups:
                if group.kind == "window":
                    most = math.ceil((group.window - 1 + new) / block) + 1
                    whole -= min(hits, columns, most)
            first_need = first - len(rank.reached(hits, seat.computed)) * rank.width
            need = max(first_need, whole) - hits * rank.full
        free = rank.free
        if not have:
            free = rank.free_after_hits(r.told, hits, seat.computed)
        fits = need <= free
        if fits and spec.reserve is not None and rank.running and not have:
            # SGLang: what is asked, and a block, must be less than what is there.
            tokens = seat.target + k - seat.computed + self.output_left(seat) + self.outputs(rank)
            asked = rank.full * (math.ceil((tokens + 1) / spec.block_tokens) + 1)
            others = whole - rank.full * math.ceil((seat.target + k) / spec.block_tokens)
            fits = asked + others <= free
        if chunk == 0 or not fits:
            seat.computed = 0
            if not fits and spec.reserve is not None and not have:
                rank.shut = bool(decoding_in(rank))
            return 0
        rank.running.append(seat)
        seat.state = "filling"
        if not have:
            rank.seat_hits(seat, hits, seat.computed)
        rank.resize(seat, first)
        seat.chunk = chunk
        seat.promised = 0
        self.name_prompt(rank, seat)
        rank.expect(seat, 0)
        if r.prefill_start < 0:
            r.prefill_start = self.now
            r.hits = seat.computed
            r.reloaded = seat.reloaded * spec.block_tokens
            if spec.prefix_caching:
                rank.hit_tokens += seat.computed
                rank.reloaded_tokens += r.reloaded
                rank.queried += seat.target
            link = self.world.link
            if link is not None and link.layerwise and spec.role == "prefill":
                self.offer(r)
        return chunk

    def complete(self, engine: Engine) -> None:
        engine.busy = False
        engine.looks = True
        if engine.flights:
            self.land(engine)
        elif engine.ranks[0].spec.batches_in_flight == 1:
            self.advance(engine)
        for rank in engine.ranks:
            if not rank.spec.curve.later:
                rank.busy += self.now - engine.start
            for seat in list(rank.running):
                if seat.gone and seat.state != "ending":
                    self.drop(seat)
            due, rank.due = rank.due, []
            for seat in due:
                self.settle(seat)

    def land(self, engine: Engine) -> None:
        """The first micro-batch on its way has left the last stage."""
        flight = engine.flights.pop(0)
        if engine.ranks[0].spec.batches_in_flight == 1:
            engine.slot = flight.slot
        for rank, due in zip(engine.ranks, flight.due, strict=True):
            rank.due = due
            for seat in rank.running:
                if seat.flight is flight:
                    seat.flight = None
        if engine.flights:
            engine.busy = True
            engine.end = engine.flights[0].end

    def settle(self, seat: Seat) -> None:
        """What a step gave a request is there."""
        r, rank = seat.request, seat.rank
        if r.over:
            if seat.state == "ending":
                self.drop(seat)
            return
        if r.prefill_end < 0:
            r.prefill_end = self.now
        # One that was retracted while its step ran has no blocks any more.
        if rank.spec.reserve and seat.state in ("decoding", "ending"):
            self.name_computed(rank, seat, seat.target)
        if rank.spec.role == "prefill":
            self.prefilled(seat)
            return
        if r.first_token < 0:
            r.first_token = self.now
        if seat.state == "ending":
            self.finish(seat)

    def prefilled(self, seat: Seat) -> None:
        r, rank = seat.request, seat.rank
        rank.running.remove(seat)
        rank.shut = False
        self.trim(seat, r.isl + rank.drafts)
        rank.held.append(seat)
        rank.load -= 1
        del rank.sent[r]
        seat.state = "held"
        assert self.world.link is not None
        if not self.world.link.layerwise:
            self.offer(r)
        elif r.seats["d"].state == "flowed":
            self.deliver(r)

    def trim(self, seat: Seat, tokens: int) -> None:
        """Give back what window groups held for a chunk and a decode step does not need."""
        rank = seat.rank
        if rank.tail:
            rank.slide(seat, rank.behind(tokens - rank.drafts))
        have = rank.blocks_of(seat)
        rank.resize(seat, min(have, rank.held_blocks(tokens, 1 + rank.drafts)))

    # Host memory ------------------------------------------------------------------------------

    def reload(self, rank: Rank, seat: Seat) -> str:
        """Fetch what only host memory has: "no" (nothing), "room" (not enough of it), or "wait"."""
        r, told, block = seat.request, seat.request.told, rank.spec.block_tokens
        if not rank.spec.host_blocks or not rank.spec.prefix_caching or rank.full == 0:
            return "no"
        most = rank.most_hits(told, seat.target)
        found = rank.cached(told, most)
        total = rank.on_host(told, most) - rank.hybrid
        if total <= found:
            return "no"
        keys = [key_of(told, j, block) for j in range(total)]
        if rank.host[keys[found]]:
            return "wait"
        new = max(rank.spec.in_flight, rank.spec.token_budget)
        whole = rank.held_blocks(seat.target + rank.drafts, new)
        need = whole - rank.full * found + self.promised(rank)
        if need > rank.free_after_hits(told, found):
            return "room"
        rank.waiting.remove(seat)
        rank.seat_hits(seat, found)
        have = rank.full * total
        rank.resize(seat, have)
        seat.state = "reloading"
        seat.reloaded = total - found
        seat.promised = whole - have
        rank.expect(seat, whole - have)
        for key in keys:
            rank.host[key] += 1
        self.share_again(rank, len(rank.reloads) + 1)
        picos = math.ceil(rank.full * rank.spec.block_bytes / rank.spec.host_bandwidth * PICOS)
        work = (total - found) * picos
        n = len(self.requests)
        item = r.index + (n if self.split else 0) + (n if seat is r.seats.get("d") else 0)
        at = self.now + work * (len(rank.reloads) + 1)
        rank.reloads.append(Reload(seat, keys, work, self.now, at, item))
        return "wait"

    def promised(self, rank: Rank) -> int:
        """Blocks that reloads of a rank will need beside what comes."""
        seats = [s for other in self.requests for s in other.seats.values()]
        return sum(s.promised for s in seats if s.rank is rank)

    def share_again(self, rank: Rank, count: int) -> None:
        """Settle the reloads under way, which will be `count` with the one that comes or goes."""
        before = count - 1 if count > len(rank.reloads) else count + 1
        for other in rank.reloads:
            other.work = max(0, other.work - (self.now - other.since) // before)
            other.since = self.now
            other.at = self.now + other.work * count

    def reloaded(self, reload: Reload) -> None:
        seat = reload.seat
        rank = seat.rank
        rank.reloads.remove(reload)
        self.share_again(rank, len(rank.reloads))
        for key in reload.keys:
            rank.host[key] -= 1
        rank.use_on_host(reload.keys)
        self.look(rank)
        if seat.request.over:
            self.drop(seat)
            return
        rank.name_blocks(seat, seat.request.told, len(reload.keys) * rank.spec.block_tokens)
        seat.state = "reloaded"
        rank.ready.append(seat)

    # Handoff ----------------------------------------------------------------------------------

    def enqueue(self, r: Request) -> None:
        seat = r.seats["d"]
        seat.state = "remote"
        seat.rank.waiting.append(seat)
        self.look(seat.rank)

    def reserve(self, rank: Rank, seat: Seat) -> bool:
        r = seat.request
        link = self.world.link
        assert link is not None
        hits = rank.hits(r, r.isl)
        if rank.states:
            # The state comes with the transfer.
            hits = min(rank.reach(r, r.isl), (r.isl - 1) // rank.spec.block_tokens)
        blocks = rank.held_blocks(r.isl + rank.drafts, 1 + rank.drafts)
        need = blocks - hits * rank.full
        if rank.tail:
            need -= len(rank.reached(hits, r.isl)) * rank.width
        spare = self.promised(rank) + self.remote_room(rank, r)
        if need + spare > rank.free_after_hits(r, hits, r.isl):
            return False
        rank.waiting.remove(seat)
        rank.seat_hits(seat, hits, r.isl)
        rank.resize(seat, blocks)
        if rank.spec.prefix_caching:
            rank.hit_tokens += hits * rank.spec.block_tokens
            rank.queried += r.isl
        rank.expect(seat, 0)
        if link.reserve_first:
            seat.state = "reserved"
            seat.to_pull = hits, need
            self.line_up(r.seats["p"])
        else:
            self.pull(r, hits, need)
        return True

    def offer(self, r: Request) -> None:
        seat = r.seats["d"]
        if seat.state == "reserved":
            self.pull(r, *seat.to_pull)
        else:
            self.enqueue(r)

    def pull(self, r: Request, hits: int, need: int) -> None:
        """Fetch what `hits` columns of the decode side lack, in `need` blocks."""
        rank, link = r.seats["d"].rank, self.world.link
        assert link is not None
        r.seats["d"].state = "pulling"
        r.transfer_start = self.now
        moved = link.bytes_per_token * (r.isl - hits * rank.spec.block_tokens) + link.fixed_bytes
        pieces = math.ceil(link.descriptors_per_block * need)
        self.flows.append(
            Flow(
                r,
                r.seats["p"].rank,
                rank,
                math.ceil(moved / link.bandwidth * PICOS),
                self.now + picos(link.latency) + pieces * picos(link.per_descriptor),
            )
        )

    def sharers(self, flow: Flow) -> int:
        moving = [f for f in self.flows if f.joined]
        at_ranks = max(
            sum(f.source is flow.source for f in moving), sum(f.sink is flow.sink for f in moving)
        )
        assert self.world.link is not None
        shared = self.world.link.shared
        if shared is None:
            return at_ranks
        out = sum(self.machine(f.source) == self.machine(flow.source) for f in moving)
        into = sum(self.machine(f.sink) == self.machine(flow.sink) for f in moving)
        return max(at_ranks, math.ceil(max(out, into) * shared.width / shared.ports))

    def machine(self, rank: Rank) -> int:
        """The machine of a rank's first GPU: GPUs are numbered by pool, instance and rank."""
        assert self.world.link is not None and self.world.link.shared is not None
        before = [e.ranks[0].spec.gpus for e in self.engines[: rank.engine.index]]
        inside = rank.engine.ranks.index(rank) * rank.spec.gpus // rank.spec.dp
        return (sum(before) + inside) // self.world.link.shared.gpus

    def move(self, flow: Flow) -> None:
        before = {f.request.index: self.sharers(f) for f in self.flows if f.joined}
        if flow.joined:
            self.flows.remove(flow)
        else:
            flow.joined = True
            flow.since = self.now
        for other in self.flows:
            if not other.joined:
                continue
            now = self.sharers(other)
            was = before.get(other.request.index, 0)
            if was == now:
                continue
            if was:
                other.work = max(0, other.work - (self.now - other.since) // was)
            other.since = self.now
            other.at = self.now + other.work * now
        if flow not in self.flows:
            r = flow.request
            if r.seats["p"].state == "held" or r.over:
                self.deliver(r)
            else:
                r.seats["d"].state = "flowed"

    def release_source(self, r: Request) -> None:
        seat = r.seats["p"]
        if seat.state == "held":
            seat.rank.held.remove(seat)
            seat.rank.release(seat)
            seat.state = "out"
            self.look(seat.rank)

    def deliver(self, r: Request) -> None:
        self.release_source(r)
        seat = r.seats["d"]
        self.look(seat.rank)
        if r.over:
            self.drop(seat)
            return
        r.transfer_end = self.now
        seat.rank.name_blocks(seat, r, covered(r))
        seat.state = "loaded"
        seat.rank.ready.append(seat)
