"""Where a model description comes from: the shipped catalogue, a file or folder, or the hub."""

import difflib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from splitpoint.errors import PlanError
from splitpoint.inputs.huggingface.config import from_config
from splitpoint.inputs.model import Model
from splitpoint.record import Record

FACTS = Path(__file__).resolve().parents[2] / "facts" / "models"
MAX_BYTES = 32 * 2**20  # assumed: ten times the largest published config.json
HUB_TIMEOUT = 5.0  # seconds, assumed: half of the hub client's own default
HUB_ID = re.compile(r"^[\w.-]{1,96}/[\w.-]{1,96}$")


class Entry(Record, frozen=True, kw_only=True):
    """One catalogue file: `config` holds the keys that the reader needs, as the hub states them.

    `parameters` is the published total. `inferred` names config keys that no source states, with
    how they were inferred; a model with such keys is only as good as the inference.
    """

    name: str
    source: str
    config: dict[str, object]
    aliases: tuple[str, ...] = ()
    parameters: int | None = None
    inferred: dict[str, str] = msgspec.field(default_factory=dict)


def load_model(source: str, *, offline: bool = False) -> Model:
    """The model under a catalogue name, a path to a config.json or its folder, or a hub id."""
    where = source if len(source) <= 200 else source[:197] + "..."
    if not source.strip() or "\0" in source:
        raise PlanError("model", "empty name", _hint(source))
    found = _on_disk(source)
    if found is not None:
        return found
    entry = _entry(source)
    if entry is not None:
        return from_entry(entry)
    if source.endswith((".json", "/")) or source.startswith((".", "/", "~")):
        raise PlanError(where, "no such file or folder")
    if not HUB_ID.match(source):
        raise PlanError(where, "no such model in the catalogue", _hint(source))
    if offline:
        raise PlanError(where, "not in the catalogue, and the hub is not asked", _hint(source))
    return _from_hub(source)


def from_entry(entry: Entry) -> Model:
    """The model of one catalogue entry."""
    model = from_config(entry.config, entry.source, entry.name)
    told = tuple(f"{key}: {how}" for key, how in entry.inferred.items())
    return msgspec.structs.replace(model, parameters=entry.parameters, inferred=told)


def catalogue() -> tuple[str, ...]:
    """The names of all shipped models, as the hub spells them, in order."""
    return tuple(sorted(entry.name for entry in entries()))


@cache
def entries() -> tuple[Entry, ...]:
    """Every catalogue entry."""
    return tuple(_decode(path) for path in sorted(FACTS.glob("*.toml")))


def _decode(path: Path) -> Entry:
    return msgspec.toml.decode(path.read_bytes(), type=Entry)


def _entry(source: str) -> Entry | None:
    """The entry named so, with or without its organisation; an organisation given must fit."""
    wanted = source.strip().lower()
    bare = wanted.rpartition("/")[2]
    direct = FACTS / f"{bare}.toml"
    if re.fullmatch(r"[\w.-]{1,96}", bare) and direct.is_file():
        entry = _decode(direct)
        if wanted in (bare, *_spellings(entry)):
            return entry
    return next((e for e in entries() if wanted in _spellings(e)), None)


def _spellings(entry: Entry) -> set[str]:
    names = [n.lower() for n in (entry.name, *entry.aliases)]
    return {*names, *(n.rpartition("/")[2] for n in names)}


def _hint(source: str) -> str:
    names = {n.rpartition("/")[2].lower(): n for n in catalogue()}
    bare = source.strip().lower().rpartition("/")[2][:100]
    near = [names[n] for n in difflib.get_close_matches(bare, names, n=4, cutoff=0.5)]
    begun = [full for short, full in names.items() if bare and short.startswith(bare)]
    found = list(dict.fromkeys(begun[:4] + near))[:4]
    return f"near: {', '.join(found)}" if found else "a catalogue name, a config.json, or a hub id"


def _on_disk(source: str) -> Model | None:
    """The model of a config.json or of a folder with one; None where there is no such path."""
    path = Path(source)
    try:
        path = path.expanduser()
        if path.is_dir():
            inner = path / "config.json"
            if not inner.is_file():
                # A folder that happens to be called like a catalogue model is not meant.
                if _entry(source) is not None:
                    return None
                raise PlanError(source, "a folder without a config.json")
            return _from_file(inner, path.resolve().name)
        if path.is_file():
            return _from_file(
                path, path.resolve().parent.name if path.name == "config.json" else ""
            )
        if path.exists():
            raise PlanError(source, "neither a file nor a folder")
    except (OSError, RuntimeError, ValueError):
        return None
    return None


def _from_file(path: Path, name: str) -> Model:
    beside = path.with_name("hf_quant_config.json")
    quant = read_json(beside) if path.name == "config.json" and beside.is_file() else None
    return from_config(read_json(path), str(path), name or path.stem, quant)


def read_json(path: Path) -> Mapping[str, object]:
    """A JSON file that holds one table; anything else is a `PlanError` that names the file."""
    where = str(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise PlanError(where, f"larger than {MAX_BYTES >> 20} MiB", "a config.json")
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise PlanError(where, f"cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise PlanError(where, "nested too deep for a config.json") from None
    except ValueError as error:
        raise PlanError(where, f"not JSON: {str(error)[:120]}") from None
    if not isinstance(found, dict):
        raise PlanError(where, "not a table of keys", "a config.json of a language model")
    return found


def _from_hub(source: str) -> Model:
    import logging

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        path = _fetched(source)
    except Exception as error:  # the hub client raises a dozen kinds, its transport's among them
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PlanError(source, f"the hub did not give it: {reason[:160]}", _hint(source)) from None
    beside = path.with_name("hf_quant_config.json")
    quant = read_json(beside) if beside.is_file() else None
    return from_config(read_json(path), f"{source}/config.json", source, quant)


def _fetched(source: str) -> Path:
    """Fetch config.json, and hf_quant_config.json beside it where there is one.

    The hub is asked briefly first, since a download from a hub out of reach retries for 25 s; then
    what the hub's cache on this disk holds is taken.
    """
    import huggingface_hub as hub
    from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

    try:
        hub.get_hf_file_metadata(hub.hf_hub_url(source, "config.json"), timeout=HUB_TIMEOUT)
    except (EntryNotFoundError, RepositoryNotFoundError):
        raise
    except Exception:
        cached = hub.try_to_load_from_cache(source, "config.json")
        if isinstance(cached, str):
            return Path(cached)
        raise
    path = Path(hub.hf_hub_download(source, "config.json", etag_timeout=HUB_TIMEOUT))
    with suppress(EntryNotFoundError):
        hub.hf_hub_download(source, "hf_quant_config.json", etag_timeout=HUB_TIMEOUT)
    return path
