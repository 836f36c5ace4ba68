"""A recipe that runs, on a terminal: where each instance answers, and what its KV pool came to."""

import shlex

from rich.console import Console
from rich.text import Text

from splitpoint.pricing.audit import Compared
from splitpoint.record import Record
from splitpoint.report.audits import figure_words
from splitpoint.report.columns import wrap
from splitpoint.report.words import plain


class Started(Record, frozen=True, kw_only=True):
    """One instance, or the router: where it answers, seconds after its wait began, its log, and
    what that printed of the KV pool (nothing for a router)."""

    name: str
    url: str
    after_s: int
    log: str
    figures: tuple[Compared, ...]


class Up(Record, frozen=True, kw_only=True):
    """A recipe that runs. `tokens`: what the check found, None where it was not asked."""

    folder: str
    endpoint: str
    instances: tuple[Started, ...]
    tokens: str | None

    @property
    def measure(self) -> str:
        """The command that measures it."""
        return f"splitpoint measure {shlex.quote(self.folder)} --out measured.npz"

    @property
    def down(self) -> str:
        """The command that stops it."""
        return f"splitpoint up {shlex.quote(self.folder)} --down"


def render_up(up: Up, console: Console) -> None:
    """Print a line for each instance, and what to do next."""
    for one in up.instances:
        figures = "; ".join(figure_words(row) for row in one.figures)
        told = f"{one.name} answers at {one.url}" + (f": {figures}" if figures else "")
        _say(console, told)
    tokens = up.tokens or "not checked"
    _say(console, f"tokens: {tokens}")
    _say(console, f"measure it: {up.measure}")
    _say(console, f"stop it: {up.down}")


def render_down(stopped: tuple[str, ...], console: Console) -> None:
    """Print what was stopped."""
    _say(console, f"stopped: {', '.join(stopped)}" if stopped else "nothing of it runs here")


def _say(console: Console, words: str) -> None:
    first, *rest = wrap(plain(words), console.width - 2)
    for line in [first, *("  " + line for line in rest)]:
        console.print(Text(line), soft_wrap=True)
