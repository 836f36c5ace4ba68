"""Files of the user: bounded, strict reading into records, and writing that is whole or absent.

A plan, a config or a trace may be anything that someone was sent, so sizes and decompression are
bounded before anything is built, and nothing but a PlanError comes out.
"""

import gzip
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, TypeVar

import msgspec

from splitpoint.errors import OutsideError, PlanError

T = TypeVar("T")

# Bounds on foreign files, assumed: far above any honest file of the kind.
MAX_BYTES = 64 * 1024**2
MAX_HAND_WRITTEN = 4 * 1024**2
MAX_TEXT_BYTES = 8 * 1024**3
MAX_LINE = 4 * 1024**2
# Deflate reaches 1,032; the public traces reach 4 to 20 (measured on the Mooncake, Azure and WEKA
# files), so past the first few MiB a larger ratio than this is a bomb.
MAX_RATIO = 100
RATIO_FROM = 4 * 1024**2
CHUNK = 256 * 1024


def read(path: Path, kind: type[T], sets: Sequence[str] = ()) -> T:
    """A record of the file, with `--set a.b=c` applied; every fault of it in one PlanError."""
    # Parsers of hand-written files are imported here: a process that reads a trace needs none.
    from splitpoint.inputs.conversion import convert

    return convert(load(path), kind, str(path), sets)


def load(path: Path, max_bytes: int = MAX_BYTES) -> object:
    """The raw tree of a TOML, YAML or JSON file (plain or .gz), within bounds, never NaN."""
    from splitpoint.inputs import raw

    suffix = _suffix(path)
    if suffix not in raw.FORMATS:
        if not path.exists():
            raise PlanError(str(path), "no such file")
        hint = "a name that ends in .toml, .yaml, .yml or .json, or one of these with .gz"
        raise PlanError(str(path), "cannot tell its format", hint)
    if suffix != ".json":
        max_bytes = min(max_bytes, MAX_HAND_WRITTEN)
    return raw.parse(str(path), suffix, _decoded(path, b"".join(_chunks(path, max_bytes))))


def content(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of a file (plain or .gz), within bounds; a plain one that is too large is not
    even begun."""
    with suppress(OSError, ValueError):
        if path.suffix.lower() != ".gz" and path.is_file() and path.stat().st_size > max_bytes:
            raise _too_large(path, max_bytes)
    return b"".join(_chunks(path, max_bytes))


def open_text(
    path: Path,
    max_bytes: int = MAX_TEXT_BYTES,
    max_line: int = MAX_LINE,
    *,
    errors: Literal["strict", "replace"] = "strict",
) -> Iterator[str]:
    """The lines of a text file (plain or .gz) without their ends, read as a stream.

    A byte-order mark is dropped. A line that is too long or not UTF-8 is a PlanError that names
    its number; with `errors="replace"`, for files that may be damaged, bytes that are not UTF-8
    are replaced and a gzip file ends where it breaks off.
    """
    for part in whole_lines(path, max_bytes, max_line, whole=errors == "strict"):
        text = part.text(errors)
        if text is None:
            yield from part.texts()
            return
        lines = text.split("\n")
        yield from (line.removesuffix("\r") for line in lines) if "\r" in text else lines


class Part(NamedTuple):
    """Lines of a file, the last one without its end; `at`: bytes of it, unpacked, before them."""

    path: Path
    at: int
    lines: bytes

    def text(self, errors: Literal["strict", "replace"] = "strict") -> str | None:
        """The lines as text without a byte-order mark, None if some are not UTF-8."""
        with suppress(UnicodeDecodeError):
            return self.lines.decode("utf-8" if self.at else "utf-8-sig", errors)
        return None

    def texts(self) -> Iterator[str]:
        """One line after the other, up to the first that is not UTF-8, which is refused."""
        for place, line in enumerate(self.lines.split(b"\n"), start=self.number):
            try:
                yield line.decode("utf-8-sig" if place == 1 else "utf-8").removesuffix("\r")
            except UnicodeDecodeError as error:
                what = f"byte {error.start + 1} is not UTF-8"
                raise PlanError(f"{self.path}: line {place}", what) from None

    @property
    def number(self) -> int:
        """The number of its first line: for a message, as the file is read again to tell."""
        number, left = 1, self.at
        for chunk in _plain(self.path, whole=False):
            number += chunk.count(b"\n", 0, left)
            left -= len(chunk)
            if left <= 0:
                break
        return number


def whole_lines(
    path: Path, max_bytes: int = MAX_TEXT_BYTES, max_line: int = MAX_LINE, *, whole: bool = True
) -> Iterator[Part]:
    """A text file (plain or .gz), read as a stream, in parts that end where a line does; `whole`
    False: a gzip file may break off.

    A line that is too long is a PlanError that names its number.
    """
    at = 0
    rest = b""
    for chunk in _chunks(path, max_bytes, whole):
        unread = rest + chunk
        if len(unread) > max_line:
            _check_lengths(Part(path, at, unread), max_line)
        lines, ended, rest = unread.rpartition(b"\n")
        if ended:
            yield Part(path, at, lines)
            at += len(lines) + 1
    if rest:
        yield Part(path, at, rest)


def _check_lengths(part: Part, max_line: int) -> None:
    for place, line in enumerate(part.lines.split(b"\n")):
        if len(line) > max_line:
            where = f"{part.path}: line {part.number + place}"
            raise PlanError(where, f"is longer than {max_line:,} bytes")


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write the whole file or none of it: a temporary sibling takes the name when it is done."""
    encoded = data.encode("utf-8") if isinstance(data, str) else data
    sibling = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sibling.write_bytes(encoded)
        sibling.replace(path)
    except OSError as error:
        raise OutsideError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            sibling.unlink()


def to_json(record: object) -> bytes:
    """The record as indented JSON with a final newline; NaN becomes null, as JSON has none."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def _suffix(path: Path) -> str:
    name = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return name.suffix.lower()


def _decoded(path: Path, encoded: bytes) -> str:
    if encoded.startswith(b"\xef\xbb\xbf"):
        raise PlanError(str(path), "starts with a byte-order mark", "save it as UTF-8 without BOM")
    try:
        return encoded.decode("utf-8")
    except UnicodeDecodeError as error:
        line = encoded.count(b"\n", 0, error.start) + 1
        raise PlanError(f"{path}: line {line}", "is not UTF-8", "save it as UTF-8") from None


def _chunks(path: Path, max_bytes: int, whole: bool = True) -> Iterator[bytes]:
    taken = 0
    for chunk in _plain(path, whole):
        taken += len(chunk)
        if taken > max_bytes:
            raise _too_large(path, max_bytes)
        yield chunk


def _too_large(path: Path, max_bytes: int) -> PlanError:
    what = f"is larger than {max_bytes / 1024**2:,.0f} MiB"
    return PlanError(str(path), what, "is it the right file?")


def _plain(path: Path, whole: bool) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            if path.suffix.lower() == ".gz":
                yield from _inflated(path, file, whole)
            else:
                while chunk := file.read(CHUNK):
                    yield chunk
    except FileNotFoundError:
        raise PlanError(str(path), "no such file") from None
    except IsADirectoryError:
        raise PlanError(str(path), "is a folder", "expected a file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        if not whole:
            return
        raise PlanError(str(path), f"is not a whole gzip file: {error}") from None
    except OSError as error:
        raise PlanError(str(path), f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        # A name with a null byte.
        raise PlanError(repr(str(path)), f"cannot be read: {error}") from None


def _inflated(path: Path, file: BinaryIO, whole: bool) -> Iterator[bytes]:
    out = 0
    with gzip.GzipFile(fileobj=file) as stream:
        # read1 hands over what precedes a break; read is faster.
        read = stream.read if whole else stream.read1
        while chunk := read(CHUNK):
            out += len(chunk)
            if out > RATIO_FROM and out > MAX_RATIO * file.tell():
                what = f"unpacks to more than {MAX_RATIO} times its size"
                raise PlanError(str(path), what, "is it a decompression bomb?")
            yield chunk
