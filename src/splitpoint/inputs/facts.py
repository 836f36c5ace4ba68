"""Facts shipped with the package: the GPUs by name, every number with its source."""

import re
from difflib import get_close_matches
from functools import cache
from importlib import resources

from splitpoint.errors import PlanError
from splitpoint.inputs import raw
from splitpoint.inputs.checks import Problem
from splitpoint.inputs.conversion import convert
from splitpoint.inputs.gpu import Gpu
from splitpoint.record import Record


class GpuFacts(Record, frozen=True, kw_only=True):
    """One file of facts/gpus: the GPU, and other names that people give it."""

    aliases: tuple[str, ...] = ()
    gpu: Gpu


def gpu(name: str) -> Gpu:
    """The GPU of a name such as "H100 SXM", "h100" or "NVIDIA H100 80GB HBM3"."""
    known = _by_key()
    if _key(name) not in known:
        raise PlanError("gpu", f"{name[:60]!r} is not a GPU of the catalogue", _hint(name))
    return known[_key(name)]


def gpu_names() -> tuple[str, ...]:
    """The catalogue's own names, in alphabetical order."""
    return tuple(sorted(facts.gpu.name for facts in _all()))


def name_faults(name: str) -> list[Problem]:
    """A fault where the catalogue has no GPU of that name."""
    if _key(name) in _by_key():
        return []
    return [Problem("", f"{name[:60]!r} is not a GPU of the catalogue", _hint(name))]


def _hint(name: str) -> str:
    spellings = {
        spelling.lower(): facts.gpu.name
        for facts in _all()
        for spelling in (facts.gpu.name, *facts.aliases)
    }
    close = get_close_matches(name[:80].lower(), spellings, n=1, cutoff=0.7)
    if close:
        return f"did you mean {spellings[close[0]]!r}?"
    return f"known: {', '.join(gpu_names())}; or a table with the keys of a GPU"


@cache
def _by_key() -> dict[str, Gpu]:
    return {_key(name): facts.gpu for facts in _all() for name in (facts.gpu.name, *facts.aliases)}


@cache
def _all() -> tuple[GpuFacts, ...]:
    folder = resources.files("splitpoint") / "facts" / "gpus"
    made = []
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".toml"):
            tree = raw.parse(file.name, ".toml", file.read_text(encoding="utf-8"))
            made.append(convert(tree, GpuFacts, file.name))
    return tuple(made)


def _key(name: str) -> str:
    """Spelling without case, punctuation and the vendor's words."""
    bare = re.sub(r"nvidia|amd|geforce|instinct|tensor core|gpu", "", name[:100].lower())
    return re.sub(r"[^a-z0-9]", "", bare)
