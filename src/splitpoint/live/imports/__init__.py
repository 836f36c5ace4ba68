"""Results of other tools as measurements: which tool wrote a file is seen from its fields.

One file may hold several results (a sweep), so a reader gives all of them and `pick` chooses one.
"""

from pathlib import Path

from splitpoint.errors import PlanError
from splitpoint.live.imports import aiperf, engine_log, guidellm, inferencex, vllm_bench
from splitpoint.live.imports.foreign import Fields, csv_rows, json_lines, json_object
from splitpoint.measurement import Measurement, of_run
from splitpoint.run import read as read_run

KNOWN = (
    "a Run (.npz, .parquet), vllm bench serve or sweep, AIPerf, GuideLLM, InferenceX rows, or "
    "requests as an engine logged them"
)


def read(path: Path) -> tuple[Measurement, ...]:
    """Every result that a file holds."""
    suffix = path.with_suffix("").suffix if path.suffix.lower() == ".gz" else path.suffix
    if suffix.lower() in (".npz", ".parquet"):
        run = read_run(path)
        simulated = run.origin == "simulated"
        source = "simulated" if simulated else "a Run of our own"
        return (of_run(run, name=run.name or path.name, source=source, gpus=run.gpus),)
    if suffix.lower() == ".jsonl":
        return (_lines(path),)
    if suffix.lower() == ".csv":
        return tuple(_row(row, i) for i, row in enumerate(_filled(csv_rows(path), path), start=1))
    if suffix.lower() == ".json":
        found = json_object(path)
        if isinstance(found, Fields):
            return _object(found, path)
        return tuple(_row(row, i) for i, row in enumerate(_filled(found, path), start=1))
    if not path.exists():
        raise PlanError(str(path), "no such file")
    raise PlanError(str(path), "cannot tell its format", f"expected {KNOWN}")


def pick(found: tuple[Measurement, ...], path: Path, number: int | None) -> Measurement:
    """The result of this number, counted from 1; without a number the only one."""
    if number is None:
        if len(found) == 1:
            return found[0]
        raise PlanError(str(path), f"holds {len(found)} results", f"--row 1 to {len(found)}")
    if not 1 <= number <= len(found):
        raise PlanError(str(path), f"has no result {number}", f"it holds {len(found)}")
    return found[number - 1]


def _object(fields: Fields, path: Path) -> tuple[Measurement, ...]:
    if "benchmarks" in fields:
        return guidellm.measurements(fields, path.name)
    if "completed" in fields or "mean_ttft_ms" in fields:
        return (vllm_bench.measurement(fields, path.name),)
    if any(fields.is_object(name) for name in ("time_to_first_token", "request_latency")):
        return (aiperf.summary(fields, path.name),)
    if "conc" in fields:
        return (inferencex.measurement(fields, 1),)
    raise PlanError(str(path), "is not a result that is known", f"expected {KNOWN}")


def _row(fields: Fields, number: int) -> Measurement:
    if "completed" in fields:
        return vllm_bench.measurement(fields, f"#{number}")
    if "tput" in fields:
        return inferencex.table_row(fields, number)
    if "conc" in fields:
        return inferencex.measurement(fields, number)
    raise PlanError(fields.place("conc"), "is missing", f"expected {KNOWN}")


def _lines(path: Path) -> Measurement:
    lines = json_lines(path)
    first = next(lines, None)
    if first is None:
        raise PlanError(str(path), "holds no request")
    rest = (fields for group in ((first,), lines) for fields in group)
    if "metadata" in first:
        return aiperf.requests(rest, path.name)
    if "first_token_ts" in first:
        return engine_log.requests(rest, path.name)
    if "completed" in first:
        return vllm_bench.measurement(first, path.name)
    raise PlanError(first.place("metadata"), "is missing", f"expected {KNOWN}")


def _filled(rows: list[Fields], path: Path) -> list[Fields]:
    if not rows:
        raise PlanError(str(path), "holds no row")
    return rows
