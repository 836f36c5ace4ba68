"""Transfers from prefill to decode ranks: a fluid shared fairly at both ends.

A transfer is first posted (latency, descriptors), then moves at 1/m of the bandwidth, m being the
largest number of transfers at its two ranks and, where the ranks of a machine share its network
ports, on the fullest port of its two machines. Work is counted in picoseconds at full bandwidth.
"""

import numpy as np

from splitpoint.native.kernel import kernel
from splitpoint.sim import chain, heap
from splitpoint.sim.chain import Chain
from splitpoint.sim.state import NEVER, PICOS, Sim


@kernel
def prepare_transfer(s: Sim, q: int, tokens: int, blocks: int) -> None:
    """What request `q` will move: `tokens` tokens in `blocks` blocks."""
    rules = s.rules[0]
    flow = s.flow[q]
    moved = s.link_bytes[0] * tokens + s.link_bytes[1]
    work = np.ceil(moved / s.link_bytes[2] * PICOS)
    flow.work = int(work) if work < NEVER else NEVER
    flow.sharers = 0
    flow.source = s.tickets[q].rank
    flow.sink = s.tickets[q + rules.requests].rank
    flow.pieces = int(np.ceil(s.link_bytes[3] * blocks))


@kernel
def post_transfer(s: Sim, q: int, now: int) -> None:
    """Post the transfer of request `q`."""
    rules = s.rules[0]
    s.requests[q].transfer_start = now
    s.flow_key[q] = now + rules.latency + s.flow[q].pieces * rules.per_descriptor
    s.clock[0].flows = heap.push(s.flows, s.clock[0].flows, s.flow_key, s.flow_pos, q)


@kernel
def _sharers(s: Sim, q: int) -> int:
    flow = s.flow[q]
    rules = s.rules[0]
    most = max(s.flow_count[flow.source], s.flow_count[flow.sink])
    if rules.ports > 0:
        out, into = s.outward[s.ranks[flow.source].machine], s.inward[s.ranks[flow.sink].machine]
        most = max(most, -(-max(out, into) * rules.width // rules.ports))
    return int(most)


@kernel
def _retime(s: Sim, q: int, now: int) -> None:
    """Time the transfers from and to the machines of a transfer that has come or gone."""
    _retime_all(s, s.sources, s.ranks[s.flow[q].source].machine, now)
    _retime_all(s, s.sinks, s.ranks[s.flow[q].sink].machine, now)


@kernel
def _retime_all(s: Sim, c: Chain, machine: int, now: int) -> None:
    q = c.head[machine]
    while q >= 0:
        flow = s.flow[q]
        sharers = _sharers(s, q)
        if sharers != flow.sharers:
            flow.work = max(0, flow.work - (now - flow.since) // flow.sharers)
            _time(s, q, sharers, now)
        q = c.next[q]


@kernel
def _time(s: Sim, q: int, sharers: int, now: int) -> None:
    flow = s.flow[q]
    flow.since = now
    flow.sharers = sharers
    # Not now + work x sharers where that would be past the clock's last moment.
    s.flow_key[q] = now + flow.work * sharers if flow.work < (NEVER - now) // sharers else NEVER
    heap.moved(s.flows, s.clock[0].flows, s.flow_key, s.flow_pos, q)


@kernel
def _count(s: Sim, q: int, change: int) -> None:
    flow = s.flow[q]
    s.flow_count[flow.source] += change
    s.flow_count[flow.sink] += change
    s.outward[s.ranks[flow.source].machine] += change
    s.inward[s.ranks[flow.sink].machine] += change


@kernel
def join_link(s: Sim, q: int, now: int) -> None:
    """A posted transfer starts to move."""
    _count(s, q, 1)
    chain.append(s.sources, s.ranks[s.flow[q].source].machine, q)
    chain.append(s.sinks, s.ranks[s.flow[q].sink].machine, q)
    _time(s, q, _sharers(s, q), now)
    _retime(s, q, now)


@kernel
def leave_link(s: Sim, q: int, now: int) -> None:
    """A transfer has moved its last byte."""
    s.clock[0].flows = heap.remove(s.flows, s.clock[0].flows, s.flow_key, s.flow_pos, q)
    _count(s, q, -1)
    chain.unlink(s.sources, s.ranks[s.flow[q].source].machine, q)
    chain.unlink(s.sinks, s.ranks[s.flow[q].sink].machine, q)
    _retime(s, q, now)
