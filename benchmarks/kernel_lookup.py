"""Held-out errors of the shipped surfaces beside those of a look-up in the tables themselves.

The look-up reads each held-out row from all others of its table: between its neighbours along every
column of its shape, straight in logarithms, the nearer the heavier. What it leaves is noise, and
kernels that change from one row to the next: about what no smooth surface can beat.
Run: python -m benchmarks.kernel_lookup [--write]
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.accuracy import PAGE, written
from splitpoint.inputs import facts
from splitpoint.timing.efficiency import efficiency
from splitpoint.timing.kernel_tables import GPUS, TABLES, Samples, samples
from splitpoint.timing.operators import Array, Kind

# Octaves added to the product of both gaps, so that a neighbour at hand does not speak alone.
NEAR = 0.05
# What is aimed at: the median error of held-out rows and its 90th percentile.
MEDIAN, P90 = 0.07, 0.2


class Errors(NamedTuple):
    """Relative errors of held-out rows, and the share of those rows that have neighbours."""

    median: float
    p90: float
    share: float


def looked_up(found: Samples) -> Array:
    """Seconds of every row, read from the others; NaN where no column has rows on both sides."""
    shapes = found.shapes[:, np.ptp(found.shapes, axis=0) > 0]
    logs, places = np.log(found.seconds), np.log2(shapes + 1.0)
    total, weight = np.zeros(len(logs)), np.zeros(len(logs))
    for column in range(shapes.shape[1]):
        same = np.unique(np.delete(shapes, column, 1), axis=0, return_inverse=True)[1].ravel()
        order = np.lexsort((places[:, column], same))
        before, here, after = order[:-2], order[1:-1], order[2:]
        inside = (same[before] == same[here]) & (same[here] == same[after])
        before, here, after = before[inside], here[inside], after[inside]
        below = places[here, column] - places[before, column]
        above = places[after, column] - places[here, column]
        span = np.maximum(below + above, 1e-9)
        between = (logs[before] * above + logs[after] * below) / span
        between = np.where(below + above > 0, between, (logs[before] + logs[after]) / 2)
        heavy = 1.0 / (NEAR + below * above)
        total[here] += heavy * between
        weight[here] += heavy
    return np.asarray(np.exp(np.where(weight > 0, total / np.maximum(weight, 1e-12), np.nan)))


def errors(found: Samples) -> Errors:
    """Errors of the look-up on held-out rows."""
    off = np.abs(looked_up(found) / found.seconds - 1.0)[found.held_out]
    known = off[np.isfinite(off)]
    if not len(known):
        return Errors(np.nan, np.nan, 0.0)
    return Errors(
        float(np.median(known)), float(np.quantile(known, 0.9)), len(known) / max(len(off), 1)
    )


class Class(NamedTuple):
    """One shipped surface: its errors and those of the look-up."""

    kind: Kind
    gpu: str
    name: str
    surface: Errors
    lookup: Errors


def classes(data: Path) -> Iterator[Class]:
    """All fitted surfaces that are shipped, in the order of the tables."""
    for table in TABLES:
        for gpu in map(facts.gpu, GPUS):
            shipped = {
                (s.engine, s.dtype): s
                for s in efficiency(gpu).surfaces
                if s.kind == table.kind and s.samples
            }
            for engine in table.engines:
                for found, _ in samples(data / GPUS[gpu.name], engine, table, gpu):
                    own = shipped.get((engine, found.operator.dtype))
                    if own is None or own.error_median is None or own.error_p90 is None:
                        continue
                    surface = Errors(own.error_median, own.error_p90, 1.0)
                    name = f"{engine} {own.dtype}"
                    yield Class(table.kind, gpu.name, name, surface, errors(found))


def report(found: Sequence[Class]) -> str:
    """Kinds down and GPUs across with the median over surfaces, then each that misses an aim."""
    lines = [f"| kind | {' | '.join(GPUS)} | look-up |", "|---" * (len(GPUS) + 2) + "|"]
    for kind in dict.fromkeys(c.kind for c in found):
        cells = []
        for gpu in GPUS:
            own = [c.surface for c in found if (c.kind, c.gpu) == (kind, gpu)]
            cells.append(f"{_middle(own)} ({len(own)})" if own else "as donor")
        cells.append(_middle([c.lookup for c in found if c.kind == kind]))
        lines.append(f"| {kind.replace('_', ' ')} | {' | '.join(cells)} |")
    missed = [c for c in found if c.surface.median > MEDIAN or c.surface.p90 > P90]
    lines += [
        "",
        f"{len(missed)} of {len(found)} surfaces miss {MEDIAN:.0%} or {P90:.0%}:",
        "",
        "| kind | GPU | engine, dtype | surface | look-up | rows it finds |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {c.kind.replace('_', ' ')} | {c.gpu} | {c.name} | {_middle([c.surface])} |"
        f" {_middle([c.lookup])} | {c.lookup.share:.0%} |"
        for c in missed
    ]
    return "\n".join(lines)


def _middle(found: Sequence[Errors]) -> str:
    median = np.nanmedian([e.median for e in found])
    return f"{median:.0%} / {np.nanmedian([e.p90 for e in found]):.0%}"


def main() -> None:
    """The command."""
    import aiconfigurator_core

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="the tables into docs/accuracy.md")
    options = parser.parse_args()
    text = report(list(classes(Path(aiconfigurator_core.__file__).parent / "systems" / "data")))
    print(text)
    if options.write:
        PAGE.write_text(written(PAGE.read_text(), text, "kernels"))


if __name__ == "__main__":
    main()
