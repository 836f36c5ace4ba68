"""Facts shipped with the package: the GPUs by name, every number with its source."""

import re
from functools import cache
from pathlib import Path

import msgspec

from splitpoint.errors import PlanError
from splitpoint.inputs.checks import Problem
from splitpoint.inputs.gpu import Gpu
from splitpoint.record import Record

FOLDER = Path(__file__).parents[1] / "facts" / "gpus"


class GpuFacts(Record, frozen=True, kw_only=True):
    """One file of facts/gpus: the GPU, and other names that people give it."""

    aliases: tuple[str, ...] = ()
    gpu: Gpu


def gpu(name: str | Gpu) -> Gpu:
    """The GPU of a name such as "H100 SXM", "h100" or "NVIDIA H100 80GB HBM3"; one written out
    is itself."""
    if isinstance(name, Gpu):
        return name
    file = _files().get(_key(name))
    if file is None:
        raise PlanError("gpu", f"{name[:60]!r} is not a GPU of the catalogue", _hint(name))
    return _facts(file).gpu


def gpu_names() -> tuple[str, ...]:
    """The catalogue's own names, in alphabetical order."""
    return tuple(sorted(head.gpu.name for head in _heads().values()))


def name_faults(name: str) -> list[Problem]:
    """A fault where the catalogue has no GPU of that name."""
    if _key(name) in _files():
        return []
    return [Problem("", f"{name[:60]!r} is not a GPU of the catalogue", _hint(name))]


def _hint(name: str) -> str:
    from difflib import get_close_matches

    spellings = {
        spelling.lower(): head.gpu.name
        for head in _heads().values()
        for spelling in (head.gpu.name, *head.aliases)
    }
    close = get_close_matches(name[:80].lower(), spellings, n=1, cutoff=0.7)
    if close:
        return f"did you mean {spellings[close[0]]!r}?"
    return f"known: {', '.join(gpu_names())}; or a table with the keys of a GPU"


class _Name(msgspec.Struct, frozen=True):
    name: str


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    """How a file begins: what its GPU is called. Only the one that is asked for is read on."""

    aliases: tuple[str, ...] = ()
    gpu: _Name


@cache
def _heads() -> dict[str, _Head]:
    files = sorted(file.name for file in FOLDER.iterdir() if file.name.endswith(".toml"))
    return {
        file: msgspec.toml.decode(_text(file).partition("\narchitecture = ")[0], type=_Head)
        for file in files
    }


@cache
def _files() -> dict[str, str]:
    return {
        _key(name): file
        for file, head in _heads().items()
        for name in (head.gpu.name, *head.aliases)
    }


@cache
def _facts(file: str) -> GpuFacts:
    # With its parsers, which a process that is given a `World` does without.
    from splitpoint.inputs import raw
    from splitpoint.inputs.conversion import convert

    return convert(raw.parse(file, ".toml", _text(file)), GpuFacts, file)


def _text(file: str) -> str:
    return (FOLDER / file).read_text(encoding="utf-8")


def _key(name: str) -> str:
    """Spelling without case, punctuation and the vendor's words."""
    bare = re.sub(r"nvidia|amd|geforce|instinct|tensor core|gpu", "", name[:100].lower())
    return re.sub(r"[^a-z0-9]", "", bare)
