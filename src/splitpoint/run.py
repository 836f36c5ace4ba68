"""What one run gave: per-request columns and per-instance series, simulated or measured.

The simulator and the measuring client both write a `Run`, so every metric, verdict and
comparison exists once. Times are seconds from the run's start; NaN where a moment never came.
A run file is a zip (`.npz`) of one column each beside `run.json`, or a `.parquet` folder of one
Parquet file per table.
"""

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from splitpoint.errors import PlanError
from splitpoint.inputs.files import write_atomic
from splitpoint.record import Record

if TYPE_CHECKING:
    import zipfile

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

OUTCOMES = ("done", "timed_out", "aborted", "infeasible", "unfinished")
DONE = OUTCOMES.index("done")
# Those whose client went before the cluster was done.
LOST = (OUTCOMES.index("timed_out"), OUTCOMES.index("aborted"))

FORMAT_VERSION = 2
# 4 M requests of 17 columns; a hostile archive is refused before it is unpacked.
MAX_BYTES = 512 * 1024**2

# NumPy's own header reader evaluates Python text; a column of numbers needs no more than this.
_NPY_COLUMN = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<dtype><[if][48])', 'fortran_order': False, "
    rb"'shape': \((?P<rows>\d{1,12}),\), \} *\n",
    re.DOTALL,
)


class Requests(Record, frozen=True, kw_only=True):
    """Columns of n requests, in trace order.

    Mixed pools leave the transfer columns NaN and `decode_instance` equal to
    `prefill_instance`. `hit_tokens`: input tokens found in the prefix cache where prefill ran,
    `host_hit_tokens` of them reloaded from host memory.
    `outcome` indexes `OUTCOMES`.
    """

    isl: Ints
    osl: Ints
    session: Ints
    turn: Ints
    arrive_s: Floats
    prefill_start_s: Floats
    prefill_end_s: Floats
    transfer_start_s: Floats
    transfer_end_s: Floats
    first_token_s: Floats
    end_s: Floats
    hit_tokens: Ints
    host_hit_tokens: Ints
    preemptions: Ints
    prefill_instance: Ints
    decode_instance: Ints
    outcome: Ints

    def __len__(self) -> int:
        return len(self.isl)


class Series(Record, frozen=True, kw_only=True):
    """State at change points, rows in time order: which instance, when, and its counts.

    `instance` is a row of `Instances`. `kv_used`: blocks held by live requests; `kv_cached`: free
    blocks that still hold a prefix; `held`: blocks of finished prefills that wait for their
    transfer (part of `kv_used`).
    """

    instance: Ints
    time_s: Floats
    kv_used: Ints
    kv_cached: Ints
    held: Ints
    running: Ints
    waiting: Ints

    def __len__(self) -> int:
        return len(self.instance)


class Instances(Record, frozen=True, kw_only=True):
    """Columns of m KV pools (an instance of dp ranks has dp rows): totals over the run.
    `kv_blocks`: the blocks that requests can hold, so without block 0, which is never used."""

    pool: Ints
    instance: Ints
    rank: Ints
    kv_blocks: Ints
    busy_s: Floats
    prefill_steps: NDArray[np.int64]
    decode_steps: NDArray[np.int64]
    mixed_steps: NDArray[np.int64]
    preemptions: Ints
    hit_tokens: NDArray[np.int64]
    queried_tokens: NDArray[np.int64]
    host_hit_tokens: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.pool)


class Run(Record, frozen=True, kw_only=True):
    """A finished run. `roles` names the role of each pool, `gpus` counts all GPUs."""

    name: str
    origin: Literal["simulated", "measured"]
    roles: tuple[str, ...]
    gpus: int
    duration_s: float
    requests: Requests
    instances: Instances
    series: Series
    notes: tuple[str, ...] = ()


Table = TypeVar("Table", Requests, Instances, Series)
Column = NDArray[Any]


class _Head(Record, frozen=True, kw_only=True):
    """The part of a Run that is not columns, as `run.json` holds it."""

    version: int
    name: str
    origin: Literal["simulated", "measured"]
    roles: tuple[str, ...]
    gpus: int
    duration_s: float
    notes: tuple[str, ...] = ()


def check_name(path: Path) -> None:
    """Refuse a name that `write` would refuse once the run is there."""
    if path.suffix not in (".npz", ".parquet"):
        raise PlanError(str(path), "is not a run file name", "end it in .npz or .parquet")


def write(run: Run, path: Path) -> None:
    """Write a run file, whole or not at all; the suffix `.npz` or `.parquet` says which kind."""
    check_name(path)
    if path.suffix == ".npz":
        write_atomic(path, _packed(run))
    else:
        _write_parquet(run, path)


def read(path: Path) -> Run:
    """The run that `write` stored at `path`; anything else there is a PlanError."""
    if path.suffix == ".npz":
        return _unpacked(path)
    if path.suffix == ".parquet":
        return _read_parquet(path)
    raise PlanError(str(path), "is not a run file", "expected a .npz file or a .parquet folder")


def no_rows(kind: type[Table]) -> Table:
    """A table without a row, for what a run does not know."""
    return kind(**{name: np.zeros(0, dtype) for name, dtype in _dtypes(kind).items()})


def _packed(run: Run) -> bytes:
    """The bytes of a run file; equal runs give equal bytes, so no clock goes in."""
    # Archives are imported where they are written or read: most processes do neither.
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        _add(archive, "run.json", msgspec.json.format(msgspec.json.encode(_head(run)), indent=1))
        for table in ("requests", "instances", "series"):
            for name, column in _columns(getattr(run, table)).items():
                member = io.BytesIO()
                np.lib.format.write_array(member, column, allow_pickle=False)
                _add(archive, f"{table}.{name}.npy", member.getvalue())
    return buffer.getvalue()


def _add(archive: "zipfile.ZipFile", name: str, content: bytes) -> None:
    """Store one member under the zip format's earliest date."""
    import zipfile

    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    archive.writestr(info, content, compress_type=zipfile.ZIP_DEFLATED, compresslevel=1)


def _unpacked(path: Path) -> Run:
    """Read the zip kind, refusing what is missing, foreign, oversized or of another type."""
    import zipfile
    import zlib

    where = str(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: info.file_size for info in archive.infolist()}
            if sum(members.values()) > MAX_BYTES:
                raise PlanError(where, "unpacks to more than 512 MiB", "is it a run file?")
            contents = {name: archive.read(name) for name in members}
    except FileNotFoundError:
        raise PlanError(where, "no such file") from None
    # NotImplementedError (a RuntimeError) is an unknown compression, RuntimeError an encryption.
    except (OSError, zipfile.BadZipFile, ValueError, EOFError, RuntimeError, zlib.error) as error:
        raise PlanError(where, f"cannot be read as a run file: {error}") from None
    if "run.json" not in contents:
        raise PlanError(where, "holds no run.json", "is it a run file?")
    head = _decoded_head(contents.pop("run.json"), f"{where}: run.json")
    parsed = {name: _array(content, f"{where}: {name}") for name, content in contents.items()}

    def table(prefix: str) -> dict[str, Column]:
        return {
            name.removeprefix(f"{prefix}.").removesuffix(".npy"): column
            for name, column in parsed.items()
            if name.startswith(f"{prefix}.")
        }

    return _checked(head, table("requests"), table("instances"), table("series"), where=where)


def _array(content: bytes, where: str) -> Column:
    """One column from `.npy` bytes; the header is believed only as far as bytes are there."""
    header = _NPY_COLUMN.match(content)
    if header is None:
        raise PlanError(where, "is not a column of numbers")
    dtype = np.dtype(header["dtype"].decode("ascii"))
    if int(header["rows"]) * dtype.itemsize != len(content) - header.end():
        raise PlanError(where, "has another length than its header says")
    return np.frombuffer(content, dtype=dtype, offset=header.end())


def _head(run: Run) -> _Head:
    """The head of a run."""
    return _Head(
        version=FORMAT_VERSION,
        name=run.name,
        origin=run.origin,
        roles=run.roles,
        gpus=run.gpus,
        duration_s=run.duration_s,
        notes=run.notes,
    )


def _decoded_head(content: bytes, where: str) -> _Head:
    """The head from JSON, its version checked before its fields."""
    try:
        version = msgspec.json.decode(content, type=dict[str, object]).get("version")
        if version != FORMAT_VERSION:
            hint = f"this version of splitpoint reads version {FORMAT_VERSION}"
            raise PlanError(where, f"version is {version!r}", hint)
        return msgspec.json.decode(content, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PlanError(where, str(error)) from None


def _columns(table: Requests | Instances | Series) -> dict[str, Column]:
    """A table as name -> column, contiguous and little-endian as `read` expects it."""
    dtypes = _dtypes(type(table))
    return {
        name: np.ascontiguousarray(getattr(table, name), dtype=dtype)
        for name, dtype in dtypes.items()
    }


def _dtypes(kind: type[Requests] | type[Instances] | type[Series]) -> dict[str, np.dtype[Any]]:
    """The dtype of each column, from its annotation."""
    hints = get_type_hints(kind)
    return {
        name: np.dtype(get_args(get_args(hints[name])[1])[0]) for name in kind.__struct_fields__
    }


def _table(kind: type[Table], columns: dict[str, Column], where: str) -> Table:
    """A table from its columns: all there, none foreign, of one length and of their types."""
    dtypes = _dtypes(kind)
    if missing := dtypes.keys() - columns.keys():
        raise PlanError(where, f"lacks the column {min(missing)}")
    if foreign := columns.keys() - dtypes.keys():
        raise PlanError(where, f"holds the unknown column {min(foreign)}")
    length = len(columns[next(iter(dtypes))])
    for name, dtype in dtypes.items():
        column = columns[name]
        if column.dtype != dtype:
            raise PlanError(f"{where}.{name}", f"is {column.dtype}, not {dtype}")
        if len(column) != length:
            raise PlanError(f"{where}.{name}", f"has {len(column)} rows where {length} are due")
        if dtype.kind == "f" and np.isinf(column).any():
            raise PlanError(f"{where}.{name}", "holds an infinite value")
    return kind(**columns)


def _checked(
    head: _Head,
    requests: dict[str, Column],
    instances: dict[str, Column],
    series: dict[str, Column],
    *,
    where: str,
) -> Run:
    """The run of these parts, with the ranges that its readers rely on."""
    run = Run(
        name=head.name,
        origin=head.origin,
        roles=head.roles,
        gpus=head.gpus,
        duration_s=head.duration_s,
        requests=_table(Requests, requests, f"{where}: requests"),
        instances=_table(Instances, instances, f"{where}: instances"),
        series=_table(Series, series, f"{where}: series"),
        notes=head.notes,
    )
    if not (0 <= run.duration_s < np.inf):
        raise PlanError(f"{where}: run.json", f"duration_s is {run.duration_s}")
    if run.gpus < 1:
        raise PlanError(f"{where}: run.json", f"gpus is {run.gpus}")
    _within(run.requests.isl, 0, None, f"{where}: requests.isl")
    _within(run.requests.osl, 0, None, f"{where}: requests.osl")
    _within(run.requests.outcome, 0, len(OUTCOMES), f"{where}: requests.outcome")
    _within(run.instances.pool, 0, len(run.roles), f"{where}: instances.pool")
    _within(run.instances.kv_blocks, 0, None, f"{where}: instances.kv_blocks")
    _within(run.series.instance, 0, len(run.instances), f"{where}: series.instance")
    if np.isnan(run.series.time_s).any() or (np.diff(run.series.time_s) < 0).any():
        raise PlanError(f"{where}: series.time_s", "is not in time order")
    return run


def _within(column: Column, low: int, high: int | None, where: str) -> None:
    """Refuse a column with a value outside [low, high)."""
    if len(column) and (column.min() < low or (high is not None and column.max() >= high)):
        limit = "up" if high is None else f"below {high}"
        raise PlanError(where, f"holds {column.min()}..{column.max()}", f"{low} and {limit}")


def _parquet() -> Any:
    """pyarrow.parquet, or how to get it."""
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        hint = 'pip install "splitpoint[parquet]", or use .npz'
        raise PlanError("pyarrow", "is not installed", hint) from None
    return pyarrow.parquet


def _write_parquet(run: Run, folder: Path) -> None:
    """Write the folder kind beside its place and then rename it there."""
    parquet = _parquet()
    import shutil
    import tempfile

    import pyarrow

    if folder.exists() and not (folder / "run.json").is_file():
        raise PlanError(str(folder), "is there and is not a run", "choose another name")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        fresh = Path(scratch) / "run"
        fresh.mkdir()
        (fresh / "run.json").write_bytes(msgspec.json.encode(_head(run)))
        for table in ("requests", "instances", "series"):
            columns = pyarrow.table(_columns(getattr(run, table)))
            parquet.write_table(columns, fresh / f"{table}.parquet")
        if folder.exists():
            shutil.move(folder, Path(scratch) / "old")
        fresh.rename(folder)


def _read_parquet(folder: Path) -> Run:
    """Read the folder kind."""
    where = str(folder)
    if not (folder / "run.json").is_file():
        raise PlanError(where, "lacks run.json", "expected a folder that a run was written to")
    parquet = _parquet()
    import pyarrow

    try:
        head = _decoded_head((folder / "run.json").read_bytes(), f"{where}: run.json")
        parts = []
        for table in ("requests", "instances", "series"):
            content = parquet.read_table(folder / f"{table}.parquet")
            parts.append({name: content.column(name).to_numpy() for name in content.column_names})
    except FileNotFoundError as error:
        raise PlanError(where, f"lacks {Path(error.filename or where).name}") from None
    except (OSError, pyarrow.ArrowException, ValueError) as error:
        raise PlanError(where, f"cannot be read as a run: {error}") from None
    return _checked(head, *parts, where=where)
