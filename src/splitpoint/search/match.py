"""Deployments put together: how many instances per side, and what each is likely to reach.

Split pools are matched by rate: a deployment serves the lesser of what its prefill and its decode
instances can. The estimates use means and no queueing, so they only choose what is simulated.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
from msgspec.structs import replace

from splitpoint.inputs.slo import Slo
from splitpoint.pricing.handoff import refusal
from splitpoint.record import Record
from splitpoint.search.instance import Instance
from splitpoint.search.loads import Load, Profile
from splitpoint.search.phases import (
    Pace,
    decode_pace,
    mixed_pace,
    prefill_rate,
    prefill_seconds,
)

# Simulated per load and arm, before routings. Assumed: enough to hold the best of a space whose
# estimates rank it within a factor of about two.
PER_ARM = 6
# Of each shape (topologies of both sides) so many counts at most: neighbours differ little.
PER_SHAPE = 2
# Instances kept per size and drafts in each phase: the best two by rate, and the fastest one.
PER_SIZE = 2
# Utilisation up to which an estimated capacity is taken to hold an open-loop load (assumed).
HEADROOM = 0.8


class Side(Record, frozen=True, kw_only=True):
    """An instance with what it can do in its role. `pace` is None where it only prefills."""

    instance: Instance
    prefill_s: float
    prefill_rate: float
    pace: Pace | None = None


class Estimate(Record, frozen=True, kw_only=True):
    """A deployment in counts, and what it is likely to do under a load: requests per second, mean
    TPOT and TTFT, and `strain`, the larger of both over the SLO's. A mixed deployment has no
    `decode`."""

    first: Instance
    firsts: int
    decode: Instance | None
    decodes: int
    rate: float
    tpot: float
    ttft: float
    strain: float
    feasible: bool

    @property
    def gpus(self) -> int:
        """GPUs in use."""
        decode = self.decode.topology.gpus if self.decode else 0
        return self.firsts * self.first.topology.gpus + self.decodes * decode

    @property
    def rate_gpu(self) -> float:
        """Requests per second and GPU."""
        return self.rate / self.gpus


class Matched(Record, frozen=True, kw_only=True):
    """What to simulate, what the estimates left out (best first), and pairs that cannot meet."""

    chosen: tuple[Estimate, ...]
    pruned: tuple[Estimate, ...]
    refused: tuple[tuple[Instance, Instance, str], ...]


def matched(
    load: Load,
    slo: Slo,
    *,
    mixed: Sequence[Instance],
    apart: Sequence[Instance],
    gpus: int,
    all_gpus: bool,
    per_arm: int = PER_ARM,
) -> Matched:
    """The deployments worth simulating under a load: the `per_arm` best of each arm on the whole
    budget, and, unless `all_gpus`, on the number of GPUs that does most per GPU.

    `mixed` are the instances of mixed deployments, `apart` those of split ones; either may be
    empty.
    """
    together = list(_mixed(mixed, load, slo, gpus))
    split: list[Estimate] = []
    refused: list[tuple[Instance, Instance, str]] = []
    for prefill, decode in product(
        _prefills(apart, load.profile), _decodes(apart, load.profile, slo)
    ):
        why = refusal(
            prefill.instance.holding.layout,
            decode.instance.holding.layout,
            prefill.instance.engine,
            decode.instance.engine,
        )
        if why is None:
            split += _split(prefill, decode, load, slo, gpus)
        else:
            refused.append((prefill.instance, decode.instance, why))
    counts = _counts(together, split, all_gpus=all_gpus)
    chosen = [
        estimate
        for arm in (together, split)
        for count in counts
        for estimate in _best([e for e in arm if e.gpus == count], per_arm // len(counts))
    ]
    kept = set(map(id, chosen))
    rest = [estimate for estimate in (*together, *split) if id(estimate) not in kept]
    return Matched(
        chosen=tuple(chosen),
        pruned=tuple(sorted(rest, key=_by_rate)),
        refused=tuple(refused),
    )


def calibrated(profile: Profile, hit_share: float) -> Profile:
    """The profile with the share of input tokens that a simulated cache held, in place of an
    infinite one's: new = isl (1 - share), pairs = new isl - new^2 / 2."""
    new = max(profile.isl * (1 - hit_share), 1.0)
    return replace(profile, new_tokens=new, pairs=new * profile.isl - new * new / 2)


def _by_rate(estimate: Estimate) -> tuple[bool, float, float]:
    """Feasible first, then by rate per GPU to two digits, then by strain: an open loop gives every
    feasible deployment the same rate, and the one with most room on its tighter side may hold it.
    """
    rate = float(f"{estimate.rate_gpu:.2g}")
    return not estimate.feasible, -rate, estimate.strain


def _by_pace(estimate: Estimate) -> tuple[float, float, float]:
    """By what is served, then by TPOT to two digits, then by strain."""
    return _unserved(estimate), float(f"{estimate.tpot:.2g}"), estimate.strain


def _by_first_token(estimate: Estimate) -> tuple[float, float, float]:
    """By what is served, then by TTFT to two digits, then by strain."""
    return _unserved(estimate), float(f"{estimate.ttft:.2g}"), estimate.strain


def _unserved(estimate: Estimate) -> float:
    """Lowest where a deployment is feasible, else the lower the more it serves: one that starves a
    side is quick with the few requests that pass."""
    return -np.inf if estimate.feasible else -float(f"{estimate.rate:.2g}")


def _best(estimates: Sequence[Estimate], count: int) -> list[Estimate]:
    """The best `count` in turn by rate, by pace and by first token, with few of each shape."""
    picked: dict[int, Estimate] = {}
    shapes: Counter[tuple[int, int]] = Counter()
    keys = (_by_rate, _by_pace, _by_first_token)
    orders = [iter(sorted(estimates, key=key)) for key in keys]
    while len(picked) < count and orders:
        for order in list(orders):
            for estimate in order:
                shape = (id(estimate.first), id(estimate.decode))
                if id(estimate) not in picked and shapes[shape] < PER_SHAPE:
                    picked[id(estimate)] = estimate
                    shapes[shape] += 1
                    break
            else:
                orders.remove(order)
            if len(picked) == count:
                break
    return list(picked.values())


def _counts(
    mixed: Sequence[Estimate], split: Sequence[Estimate], *, all_gpus: bool
) -> tuple[int, ...]:
    """The numbers of GPUs to compare at: the most that both arms can use, and the one at which
    the best feasible deployment does most per GPU."""
    shared = {e.gpus for e in mixed} & {e.gpus for e in split} if mixed and split else set()
    reachable = shared or {e.gpus for e in (*mixed, *split)}
    if not reachable:
        return ()
    able = [e for e in (*mixed, *split) if e.feasible and e.gpus in reachable]
    if all_gpus or not able:
        return (max(reachable),)
    return tuple(dict.fromkeys((max(reachable), min(able, key=_by_rate).gpus)))


def _mixed(instances: Sequence[Instance], load: Load, slo: Slo, gpus: int) -> Iterator[Estimate]:
    for instance in instances:
        side = Side(
            instance=instance,
            prefill_s=prefill_seconds(instance, load.profile),
            prefill_rate=prefill_rate(instance, load.profile),
            pace=mixed_pace(instance, load.profile),
        )
        for count in range(1, gpus // instance.topology.gpus + 1):
            yield _estimate(side, count, None, 0, load, slo)


def _split(prefill: Side, decode: Side, load: Load, slo: Slo, gpus: int) -> Iterator[Estimate]:
    """Each number of prefill instances with the decode instances that keep step, and with those
    that use up the budget."""
    assert decode.pace is not None
    width, depth = prefill.instance.topology.gpus, decode.instance.topology.gpus
    paced = decode.pace.rate_within(slo.tpot_s) or float(decode.pace.rate.max())
    for prefills in range(1, (gpus - depth) // width + 1):
        most = (gpus - prefills * width) // depth
        even = prefills * prefill.prefill_rate / paced
        decodes = {min(max(round(n), 1), most) for n in (np.floor(even), np.ceil(even), most)}
        for count in sorted(decodes):
            yield _estimate(prefill, prefills, decode, count, load, slo)


def _estimate(
    first: Side, firsts: int, decode: Side | None, decodes: int, load: Load, slo: Slo
) -> Estimate:
    """A deployment under a load.

    Open loop at rate r: TPOT where the decode side reaches r, TTFT = prefill / (1 - utilisation).
    Closed loop of c users: the most sequences n with n + rate(n) x prefill <= c that prefill can
    feed; TTFT is what is left of c / rate after decoding.
    """
    side, count = (first, firsts) if decode is None else (decode, decodes)
    assert side.pace is not None
    ranks = count * side.instance.topology.dp
    rates, tpots = count * side.pace.rate, side.pace.tpot
    ceiling = firsts * first.prefill_rate
    osl = load.profile.osl
    if load.concurrency is None:
        within = side.pace.held(slo.tpot_s)
        capacity = min(float(rates[: within or None].max(initial=0.0)), ceiling)
        wanted = load.rate if load.rate is not None else capacity
        index = min(int(np.count_nonzero(rates < min(wanted, ceiling))), len(rates) - 1)
        rate = min(wanted, float(rates[index]), ceiling)
        busy = min(rate / ceiling, 0.99)
        tpot, ttft = float(tpots[index]), first.prefill_s / (1 - busy)
        steady = wanted <= HEADROOM * capacity or load.rate is None
    else:
        users = load.concurrency
        n = ranks * np.arange(1, len(rates) + 1)
        fed = (rates <= ceiling) & (n + rates * first.prefill_s * (decode is not None) <= users)
        index = max(int(np.count_nonzero(np.cumprod(fed))) - 1, 0)
        tpot = float(tpots[index])
        alone = users / (first.prefill_s + osl * tpot)
        rate = min(alone, ceiling, float(rates[index]) if fed[0] else alone)
        ttft = max(first.prefill_s, users / rate - osl * tpot)
        steady = True
    strain = max(ttft / slo.ttft_s, tpot / slo.tpot_s)
    return Estimate(
        first=first.instance,
        firsts=firsts,
        decode=decode.instance if decode else None,
        decodes=decodes,
        rate=rate,
        tpot=tpot,
        ttft=ttft,
        strain=strain,
        feasible=steady and strain <= 1,
    )


def _prefills(instances: Sequence[Instance], profile: Profile) -> list[Side]:
    """The prefill instances worth pairing: per size and drafts the best by rate, and the one that
    prefills a single request fastest."""
    sides = [
        Side(
            instance=instance,
            prefill_s=prefill_seconds(instance, profile),
            prefill_rate=prefill_rate(instance, profile),
        )
        for instance in instances
    ]
    return _kept(sides, lambda side: side.prefill_rate, lambda side: -side.prefill_s)


def _decodes(instances: Sequence[Instance], profile: Profile, slo: Slo) -> list[Side]:
    """The decode instances worth pairing: per size and drafts the best by rate within the SLO,
    and the one that decodes a single request fastest."""
    sides = [
        Side(instance=instance, prefill_s=0.0, prefill_rate=0.0, pace=pace)
        for instance in instances
        if len((pace := decode_pace(instance, profile)).rate)
    ]
    return _kept(
        sides,
        lambda side: side.pace.rate_within(slo.tpot_s) if side.pace else 0.0,
        lambda side: -float(side.pace.tpot[0]) if side.pace else 0.0,
    )


def _kept(
    sides: Sequence[Side], rate: Callable[[Side], float], pace: Callable[[Side], float]
) -> list[Side]:
    """Per size and drafts the `PER_SIZE` best by rate, and the best by pace."""
    groups: dict[tuple[int, int], list[Side]] = {}
    for side in sides:
        key = (side.instance.topology.gpus, side.instance.engine.drafts)
        groups.setdefault(key, []).append(side)
    kept: list[Side] = []
    for group in groups.values():
        best = sorted(group, key=rate, reverse=True)[:PER_SIZE]
        fastest = max(group, key=pace)
        kept += best if any(side is fastest for side in best) else [*best, fastest]
    return kept
