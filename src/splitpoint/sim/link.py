"""Transfers from prefill to decode instances: a fluid shared fairly at both ends.

A transfer is first posted (latency, descriptors), then moves at 1/m of the bandwidth, m being
the larger number of transfers at its two ends. Work is counted in picoseconds at full bandwidth.
"""

import numpy as np

from splitpoint.sim import chain, heap
from splitpoint.sim.kernel import kernel
from splitpoint.sim.state import PICOS, Sim


@kernel
def begin_transfer(s: Sim, q: int, tokens: int, blocks: int, now: int) -> None:
    """Post the transfer of `tokens` tokens in `blocks` blocks of request `q`."""
    rules = s.rules[0]
    flow = s.flow[q]
    moved = s.link_bytes[0] * tokens + s.link_bytes[1]
    flow.work = int(np.ceil(moved / s.link_bytes[2] * PICOS))
    flow.joined = 0
    flow.source = s.ranks[s.tickets[q].rank].engine
    flow.sink = s.ranks[s.tickets[q + rules.requests].rank].engine
    pieces = int(np.ceil(s.link_bytes[3] * blocks))
    s.requests[q].transfer_start = now
    s.flow_key[q] = now + rules.latency + pieces * rules.per_descriptor
    s.clock[0].flows = heap.push(s.flows, s.clock[0].flows, s.flow_key, s.flow_pos, q)


@kernel
def _sharers(s: Sim, q: int) -> int:
    flow = s.flow[q]
    return int(max(s.flow_count[flow.source], s.flow_count[flow.sink]))


@kernel
def _reshare(s: Sim, e: int, other: int, change: int, now: int) -> None:
    """Settle the transfers at endpoint `e` before its count changes by `change`, and time them
    anew; those that also touch endpoint `other` are settled with both changes at once."""
    at_source = e < s.rules[0].first_sink
    c = s.sources if at_source else s.sinks
    q = c.head[e]
    while q >= 0:
        flow = s.flow[q]
        far = flow.sink if at_source else flow.source
        # A transfer between the same two ends is on both lists: settle it from the source's.
        if at_source or far != other:
            sharers = _sharers(s, q)
            far_count = s.flow_count[far] + (change if far == other else 0)
            then = max(s.flow_count[e] + change, far_count)
            if then != sharers:
                flow.work = max(0, flow.work - (now - flow.since) // sharers)
                flow.since = now
                s.flow_key[q] = now + flow.work * then
                heap.moved(s.flows, s.clock[0].flows, s.flow_key, s.flow_pos, q)
        q = c.next[q]


@kernel
def join_link(s: Sim, q: int, now: int) -> None:
    """A posted transfer starts to move."""
    flow = s.flow[q]
    _reshare(s, flow.source, flow.sink, 1, now)
    _reshare(s, flow.sink, flow.source, 1, now)
    s.flow_count[flow.source] += 1
    s.flow_count[flow.sink] += 1
    chain.append(s.sources, flow.source, q)
    chain.append(s.sinks, flow.sink, q)
    flow.joined = 1
    flow.since = now
    s.flow_key[q] = now + flow.work * _sharers(s, q)
    heap.moved(s.flows, s.clock[0].flows, s.flow_key, s.flow_pos, q)


@kernel
def leave_link(s: Sim, q: int, now: int) -> None:
    """A transfer has moved its last byte."""
    flow = s.flow[q]
    s.clock[0].flows = heap.remove(s.flows, s.clock[0].flows, s.flow_key, s.flow_pos, q)
    chain.unlink(s.sources, flow.source, q)
    chain.unlink(s.sinks, flow.sink, q)
    _reshare(s, flow.source, flow.sink, -1, now)
    _reshare(s, flow.sink, flow.source, -1, now)
    s.flow_count[flow.source] -= 1
    s.flow_count[flow.sink] -= 1
