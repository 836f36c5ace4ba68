"""Predicted against measured, row by row: each row simulated as its benchmark ran it.

`python -m benchmarks.accuracy` prices, bakes and simulates the rows of `measured_rows` with an
even CRC-32 and prints the errors by engine, GPU, model and mode; `--held-out` takes the others,
once a release. Results are kept under out/accuracy by the content of row and code, so that an
interrupted run goes on where it stopped.
"""

import argparse
import hashlib
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple, get_args

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

import splitpoint
from benchmarks.measured_rows import (
    Measured,
    Refused,
    inferencex_rows,
    model_of,
    wheel_rows,
)
from splitpoint import metrics
from splitpoint.errors import PlanError
from splitpoint.inputs import facts
from splitpoint.inputs.engine import Kernels
from splitpoint.inputs.gpu import Gpu
from splitpoint.inputs.trace import Trace, unshared
from splitpoint.record import Record
from splitpoint.search.world import candidate, world
from splitpoint.sim import simulate
from splitpoint.timing import kernel_tables
from splitpoint.timing.curve import PICO, StepCurve
from splitpoint.timing.host import host_speed

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out" / "accuracy"
PAGE = ROOT / "docs" / "accuracy.md"
SHARED = ROOT.parent / "shared" / "truth" / "inferencex_dsr1_configs.csv"
# benchmark_lib.sh: `--num-prompts $((CONC * 10))`.
TURNS = 10
# Seconds that the first wave of InferenceX's loops waits for kernels met for the first time: fitted
# on even rows, see `fronts`. The warm-up of newer runs (2 requests a user) repeats one prompt.
COLD_S = {"vllm": 0.0, "sglang": 1.0, "trtllm": 0.0}
# Rows of one task of the process pool.
CHUNK = 16


class Outcome(Record, frozen=True, kw_only=True):
    """A simulated row: seconds by the row's statistic, or why there are none."""

    key: str
    ttft: float = 0.0
    tpot: float = 0.0
    success: float = 0.0
    cpu: float = 0.0
    refused: str = ""


class Compared(NamedTuple):
    """A row beside what was predicted for it."""

    row: Measured
    outcome: Outcome

    @property
    def ttft(self) -> float:
        """Predicted over measured TTFT."""
        return self.outcome.ttft / self.row.ttft

    @property
    def tpot(self) -> float:
        """Predicted over measured TPOT."""
        return self.outcome.tpot / self.row.tpot


def held_back(row: Measured, curve: StepCurve) -> Floats:
    """Seconds that each prompt waits for what the simulator does not know: a cold start of the
    first wave, later the server's `hold`, in steps of a full batch."""
    n = row.concurrency * TURNS
    rng = np.random.default_rng(1)
    pool = row.deployment.pools[-1]
    per_rank = -(-row.concurrency // (pool.topology.dp * pool.replicas))
    running = min(per_rank, len(curve.decode) - 1)
    share = (1 + row.spread) / 2
    context = (row.isl + row.osl / 2) * share
    step = PICO * sum(
        float(stage.decode[running] + stage.decode_context[running] * running * context)
        for stage in curve.stages
    )
    steps = np.zeros(n)
    if row.hold.polls > 1:
        steps = rng.uniform(0, row.hold.polls, n)
        if row.mode == "PD":
            # An instance that stands idle, as all other users are elsewhere, looks at once.
            steps *= rng.random(n) < 1 - (1 - 1 / pool.replicas) ** (row.concurrency - 1)
    elif row.hold.waits:
        # Prompts come at users / output tokens a step; the first waits for the whole gathering.
        rate = per_rank / (row.osl * share)
        budget = pool.engine.batched_tokens or 8192
        gathered = min(float(row.hold.waits), row.hold.share * budget / (row.isl * share) / rate)
        group = max(1.0, rate * gathered)
        first = rng.random(n) < 1 / group
        steps = np.where(first, gathered, rng.uniform(0, gathered, n))
    waits: Floats = steps * step
    waits[: row.concurrency] = COLD_S[row.engine] if row.source != "own" else 0.0
    return waits


def lengths(row: Measured) -> tuple[Ints, Ints]:
    """Input and output tokens of the loop's requests, even from `spread` to 1 of the nominal."""
    rng = np.random.default_rng(0)
    n = row.concurrency * TURNS

    def drawn(nominal: int) -> Ints:
        return rng.integers(int(nominal * row.spread), nominal + 1, n).astype(np.int32)

    return drawn(row.isl), drawn(row.osl)


def closed_loop(row: Measured, before: Floats) -> Trace:
    """`concurrency` users who ask again at once, TURNS times, all starting together; lengths drawn
    evenly from `spread` to 1 of the nominal."""
    isl, osl = lengths(row)
    return replace(
        unshared(before, isl, osl, name="closed loop"),
        session=np.tile(np.arange(row.concurrency, dtype=np.int32), TURNS),
        turn=np.repeat(np.arange(TURNS, dtype=np.int32), row.concurrency),
        think_s=before,
        closed=True,
    )


def simulated(row: Measured) -> Outcome:
    """The row through the product: priced, baked, simulated."""
    start = time.process_time()
    gpu: Gpu = facts.gpu(row.gpu)
    try:
        model = model_of(row)
        ready = candidate(row.deployment, model, [gpu] * len(row.deployment.pools))
        share = (1 + row.spread) / 2
        served = world(ready, model, tokens=int(row.isl * share))
    except PlanError as error:
        return Outcome(key=row.key, refused=str(error))
    before = held_back(row, ready.instances[-1].curve)
    run = simulate(served, closed_loop(row, before), series=False)
    done = metrics.finished(run)
    if not done.all():
        held = min(i.holding.kv_blocks for i in ready.instances)
        why = f"{1 - done.mean():.0%} of its requests find no room ({held} KV blocks)"
        return Outcome(key=row.key, refused=why, cpu=time.process_time() - start)
    middle: Callable[..., np.floating] = np.mean if row.statistic == "mean" else np.median
    return Outcome(
        key=row.key,
        ttft=float(middle((metrics.ttft(run) + before)[done])),
        tpot=float(middle(metrics.tpot(run)[done])),
        success=float(done.mean()),
        cpu=time.process_time() - start,
    )


def _simulated_all(rows: Sequence[Measured]) -> list[Outcome]:
    return [simulated(row) for row in rows]


def _code() -> bytes:
    """A digest of everything that a prediction depends on."""
    digest = hashlib.sha256()
    package = Path(splitpoint.__file__).parent
    for folder in ("inputs", "facts", "pricing", "timing", "sim"):
        for path in sorted((package / folder).rglob("*")):
            if path.suffix in (".py", ".toml"):
                digest.update(path.read_bytes())
    for path in (package / "search" / "instance.py", package / "search" / "world.py"):
        digest.update(path.read_bytes())
    digest.update(Path(__file__).read_bytes())
    return digest.digest()


def outcomes(rows: Sequence[Measured], jobs: int) -> dict[str, Outcome]:
    """Outcome of every row, from earlier runs of the same code where there are any."""
    OUT.mkdir(parents=True, exist_ok=True)
    file = OUT / f"{_code().hex()[:16]}.jsonl"
    decoder = msgspec.json.Decoder(tuple[str, Outcome])
    encoder = msgspec.json.Encoder()
    names = {row.key: hashlib.sha256(encoder.encode(row)).hexdigest()[:16] for row in rows}
    known = {}
    if file.exists():
        known = dict(decoder.decode(line) for line in file.read_bytes().splitlines())
    found = {row.key: known[names[row.key]] for row in rows if names[row.key] in known}
    todo = [row for row in rows if row.key not in found]
    # Long runs first, so that no worker is left with one at the end.
    todo.sort(key=lambda row: -row.concurrency)
    tasks = [todo[i :: -(-len(todo) // CHUNK)] for i in range(-(-len(todo) // CHUNK))]
    with file.open("ab") as out, ProcessPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(_simulated_all, task) for task in tasks]):
            for outcome in done.result():
                found[outcome.key] = outcome
                out.write(encoder.encode((names[outcome.key], outcome)) + b"\n")
            out.flush()
            print(f"\r{len(found)}/{len(rows)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def measured(*, held_out: bool) -> tuple[list[Measured], list[Refused]]:
    """Rows of both sources on one side of the split, and those that cannot be read."""
    rows: list[Measured] = []
    refused: list[Refused] = []
    sources: list[Iterable[Measured | Refused]] = [wheel_rows(held_out=held_out)]
    if SHARED.exists():
        sources.append(inferencex_rows(SHARED, held_out=held_out))
    for source in sources:
        for row in source:
            if isinstance(row, Refused):
                refused.append(row)
            else:
                rows.append(row)
    return rows, refused


def on_kernels(row: Measured, kernels: Kernels) -> Measured:
    """The row with step times from these kernels, where its GPU has measured ones."""
    if row.gpu not in kernel_tables.GPUS:
        return row
    pools = tuple(
        replace(pool, engine=replace(pool.engine, kernels=kernels)) for pool in row.deployment.pools
    )
    return replace(row, deployment=replace(row.deployment, pools=pools))


def table(pairs: Sequence[Compared], title: str, by: Callable[[Compared], str]) -> list[str]:
    """A Markdown table: rows, and of TPOT and TTFT the median absolute error and the predicted over
    measured ratio (median, p10, p90) of each group, largest first."""
    groups: dict[str, list[Compared]] = {}
    for pair in pairs:
        groups.setdefault(by(pair), []).append(pair)
    lines = [
        f"| {title} | rows | TPOT error | ratio | p10 - p90 | TTFT error | ratio | p10 - p90 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, members in sorted(groups.items(), key=lambda item: -len(item[1])):
        cells = [name, f"{len(members)}"]
        for ratios in ([pair.tpot for pair in members], [pair.ttft for pair in members]):
            low, middle, high = np.quantile(ratios, (0.1, 0.5, 0.9))
            error = np.median(abs(np.array(ratios) - 1))
            cells += [f"{error:.0%}", f"{middle:.2f}", f"{low:.2f} - {high:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def worst(pairs: Sequence[Compared], count: int) -> list[str]:
    """The rows with the largest TPOT error, as a Markdown table."""
    lines = [
        "| row | served as | users | TPOT measured, predicted (ms) | TTFT (s) |",
        "|---|---|---|---|---|",
    ]
    for row, found in sorted(pairs, key=lambda pair: -abs(np.log(pair.tpot)))[:count]:
        lines.append(
            f"| {row.key[:70].replace('|', ' ')} | {row.engine} {row.gpu} {row.deployment} "
            f"| {row.concurrency} | {row.tpot * 1e3:.1f}, {found.tpot * 1e3:.1f} "
            f"| {row.ttft:.2f}, {found.ttft:.2f} |"
        )
    return lines


SOURCES: dict[str, str] = {
    "inferencex": "DeepSeek-R1 table",
    "aiconfigurator": "wheel, from InferenceX",
    "own": "wheel, its own runs",
}

GROUPS: dict[str, Callable[[Compared], str]] = {
    "source": lambda p: f"{p.row.mode}, {SOURCES[p.row.source]}{', drafts' * bool(p.row.drafts)}",
    "engine": lambda p: f"{p.row.mode} {p.row.engine}",
    "GPU": lambda p: f"{p.row.mode} {p.row.gpu}",
    "model": lambda p: f"{p.row.mode} {p.row.model}",
    "users": lambda p: f"{p.row.mode}, {_users(p.row.concurrency)}",
    "lengths": lambda p: f"{p.row.mode} {p.row.isl}/{p.row.osl}",
}


class Front(NamedTuple):
    """What stands between a client and the first step, fitted: seconds a request, seconds an
    input token, seconds of a cold first wave, and the median error on rows left out."""

    request: float
    token: float
    cold: float
    error: float


def fronts(pairs: Sequence[Compared]) -> dict[str, Front]:
    """Per engine, the front that InferenceX's mixed rows of up to 32 users show.

    Least absolute relative error of measured - (simulated without it) = request + token x input +
    cold / TURNS (in a mean; a median does not see the first wave). Rows fall into two halves by
    their CRC-32; the error is of each half under the fit of the other.
    """
    found = {}
    for engine in ("vllm", "sglang", "trtllm"):
        chosen = _unhurried(pairs, engine, "agg")
        medians = any(p.row.statistic == "median" for p in chosen)
        columns = np.array(
            [
                (1.0, p.row.isl * (1 + p.row.spread) / 2, (p.row.statistic == "mean") / TURNS)
                for p in chosen
            ]
        )[:, : 3 if medians else 2]
        speed = host_speed(chosen[0].row.deployment.pools[0].engine)
        now = np.array([speed.front, speed.front_token, COLD_S[engine]])[: columns.shape[1]]
        left = np.array([p.row.ttft - p.outcome.ttft for p in chosen]) + columns @ now
        scale = np.array([p.row.ttft for p in chosen])
        request, token, cold = map(float, [*_least_absolute(columns, left, scale), 0.0][:3])
        error = _left_out(chosen, columns, left, scale)
        found[engine] = Front(request, token, cold, error)
    return found


class Hop(NamedTuple):
    """Seconds more of a request that decodes elsewhere than it prefills, more `across` a network,
    fitted: the median error of TTFT on rows left out, and how many rows there were."""

    seconds: float
    across: float
    error: float
    rows: int


def hops(pairs: Sequence[Compared]) -> dict[str, Hop]:
    """Per engine, the hop that split rows of up to 32 users without drafts show: least absolute
    relative error of measured - simulated without it; the error as that of `fronts`."""
    found = {}
    for engine in ("vllm", "sglang", "trtllm"):
        chosen = _unhurried(pairs, engine, "PD")
        speed = host_speed(chosen[0].row.deployment.pools[0].engine)
        columns = np.array(
            [(1.0, p.row.deployment.gpus > facts.gpu(p.row.gpu).domain) for p in chosen]
        )
        now = columns @ np.array([speed.hop, speed.hop_across])
        left = np.array([p.row.ttft - p.outcome.ttft for p in chosen]) + now
        scale = np.array([p.row.ttft for p in chosen])
        seconds, across = map(float, _least_absolute(columns, left, scale))
        error = _left_out(chosen, columns, left, scale)
        found[engine] = Hop(seconds, across, error, len(chosen))
    return found


def _unhurried(pairs: Sequence[Compared], engine: str, mode: str) -> list[Compared]:
    """The rows that a front or a hop is fitted to: not the wheel's own, of few users, no drafts."""
    return [
        p
        for p in pairs
        if p.row.engine == engine
        and p.row.mode == mode
        and p.row.source != "own"
        and p.row.concurrency <= 32
        and not p.row.drafts
    ]


def _left_out(pairs: Sequence[Compared], columns: Floats, wanted: Floats, scale: Floats) -> float:
    """Median relative error of each half of the rows under the fit of the other."""
    half = np.array([zlib.crc32(p.row.key.encode()) // 2 % 2 == 0 for p in pairs])
    errors = []
    for side in (half, ~half):
        if side.any():
            fit = _least_absolute(columns[side], wanted[side], scale[side])
            errors.append(abs(wanted - columns @ fit)[~side] / scale[~side])
    return float(np.median(np.concatenate(errors)))


def _least_absolute(columns: Floats, wanted: Floats, scale: Floats) -> Floats:
    """Coefficients, none negative, of the least sum of |error| / scale (reweighted squares)."""
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    weights = 1 / scale
    found = np.zeros(columns.shape[1])
    for _ in range(50):
        root = np.sqrt(weights)
        found, _ = nnls(columns * root[:, None], wanted * root)
        weights = 1 / (scale * np.maximum(abs(wanted - columns @ found), 1e-4))
    return np.asarray(found)


def _users(users: int) -> str:
    return next((f"up to {top} users" for top in (4, 16, 64, 256) if users <= top), "more users")


def report(pairs: Sequence[Compared], refused: Sequence[Refused]) -> str:
    """All tables as Markdown."""
    lines = table(pairs, "mode", lambda p: p.row.mode)
    for title, by in GROUPS.items():
        lines += ["", *table(pairs, title, by)]
    lines += ["", "Largest TPOT errors:", "", *worst(pairs, 10)]
    reasons: dict[str, int] = {}
    for row in refused:
        reasons[row.why] = reasons.get(row.why, 0) + 1
    lines += ["", "Rows left out:", "", "| rows | why |", "|---|---|"]
    for why, count in sorted(reasons.items(), key=lambda item: -item[1]):
        lines.append(f"| {count} | {why} |")
    return "\n".join(lines)


def written(page: str, text: str, name: str) -> str:
    """The page with `text` between the marks of its section `name`."""
    before, after = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    start, end = page.index(before) + len(before), page.index(after)
    return f"{page[:start]}\n{text}\n\n{page[end:]}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--held-out", action="store_true", help="the test rows; once a release")
    parser.add_argument("--write", action="store_true", help="the tables into docs/accuracy.md")
    parser.add_argument("--every", type=int, default=1, help="every n-th row only")
    parser.add_argument(
        "--kernels", choices=get_args(Kernels), default="fitted", help="as a plan's"
    )
    parser.add_argument("--fit", action="store_true", help="print the front and hop of host.toml")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if options.write and options.kernels != "fitted":
        parser.error("docs/accuracy.md holds the errors of fitted kernels")
    rows, refused = measured(held_out=options.held_out)
    rows = [on_kernels(row, options.kernels) for row in rows[:: options.every]]
    found = outcomes(rows, options.jobs)
    pairs = [Compared(row, found[row.key]) for row in rows if not found[row.key].refused]
    refused += [Refused(row.key, found[row.key].refused) for row in rows if found[row.key].refused]
    text = report(pairs, refused)
    print(text)
    if options.fit:
        for engine, front in fronts(pairs).items():
            print(engine, front)
        for engine, hop in hops(pairs).items():
            print(engine, hop)
    print(f"\nCPU seconds: {sum(outcome.cpu for outcome in found.values()):.0f}")
    if options.write:
        name = "held-out rows" if options.held_out else "even rows"
        PAGE.write_text(written(PAGE.read_text(), text, name))


if __name__ == "__main__":
    main()
