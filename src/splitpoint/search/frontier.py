"""The frontier: deployments that no other beats in both throughput per GPU and pace per user."""

from collections.abc import Sequence


def frontier(throughput: Sequence[float], pace: Sequence[float]) -> tuple[int, ...]:
    """Indices of the points that no other point equals or beats on both axes, slowest pace first.

    Of points equal on both axes the first stays.
    """
    order = sorted(range(len(pace)), key=lambda i: (-pace[i], -throughput[i], i))
    kept: list[int] = []
    best = float("-inf")
    for index in order:
        if throughput[index] > best:
            kept.append(index)
            best = throughput[index]
    return tuple(reversed(kept))
