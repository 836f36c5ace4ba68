"""A self-contained HTML page in parts: frame, figures and tables, for whatever is reported.

No network, no eval, readable without scripts. All words that came from a user's file are escaped
where they enter the page (`text`), and specs of figures are embedded as inert JSON.
"""

import json
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from splitpoint.report import words

if TYPE_CHECKING:
    import altair as alt

# No source but the page itself; scripts and styles are the ones inside it.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)
NUMBER, WORDS = "number", "words"


def document(
    title: str,
    sections: Sequence[tuple[str, str, str]],
    charts: "Charts",
    *,
    header: str,
    footer: str,
) -> str:
    """The whole page; `sections`: anchor, title and body of each, empty bodies left out."""
    kept = [(anchor, name, body) for anchor, name, body in sections if body]
    nav = "".join(f'<a href="#{anchor}">{name}</a>' for anchor, name, _ in kept)
    body = "".join(
        f'<section id="{anchor}" aria-labelledby="{anchor}-h"><h2 id="{anchor}-h">{name}</h2>'
        f"{inner}</section>\n"
        for anchor, name, inner in kept
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n"
        f"<style>{_asset('page.css')}</style>\n</head>\n<body>\n"
        f'<header>{header}<nav aria-label="Sections">{nav}</nav></header>\n'
        f"<main>\n{body}</main>\n{_footer(footer)}"
        f"{charts.specs()}<script>{_bundle()}</script>\n<script>{_asset('page.js')}</script>\n"
        "</body>\n</html>\n"
    )


def top(about: str) -> str:
    """The line above the headline, with the button that changes the theme."""
    return (
        f'<div class="top"><span>{text(about)}</span>'
        '<button id="theme" type="button" hidden>Dark</button></div>'
    )


def cards(keys: Sequence[tuple[str, str, str]]) -> str:
    """Figures in boxes: name, value, and "wide" or nothing."""
    boxes = "".join(
        f"<div{_class(kind)}><dt>{text(name)}</dt><dd>{text(value)}</dd></div>"
        for name, value, kind in keys
    )
    return f'<dl class="keys">{boxes}</dl>'


def _footer(line: str) -> str:
    return (
        f"<footer>{text(line)} "
        '<span class="noscript"><noscript>Figures need scripts; the tables hold the same '
        "numbers.</noscript></span></footer>\n"
    )


class Charts:
    """The figures of the page, numbered as they come."""

    def __init__(self) -> None:
        self._specs: list[str] = []

    def figure(self, chart: "alt.LayerChart", told: str, caption: str) -> str:
        """A figure: its place in the page, words for who cannot see it, and a caption."""
        name = f"spec-{len(self._specs) + 1}"
        # The tests hold every figure against Vega-Lite's schema; here it would only cost time.
        made = chart.to_dict(validate=False)
        spec = json.dumps(made, separators=(",", ":"), allow_nan=False)
        self._specs.append(f'<script type="application/json" id="{name}">{_inert(spec)}</script>\n')
        return (
            f'<figure><div class="chart" role="img" aria-label="{text(told)}" data-spec="{name}">'
            f"</div><figcaption>{text(caption)}</figcaption></figure>"
        )

    def specs(self) -> str:
        return "".join(self._specs)


def table(
    caption: str,
    headers: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[str]],
    marked: Sequence[bool] = (),
) -> str:
    """A table of finished cells; the first of each row is its header."""
    head = "".join(f'<th scope="col"{_class(kind)}>{text(name)}</th>' for name, kind in headers)
    marks = list(marked) or [False] * len(rows)
    body = "".join(
        f'<tr{_class("chosen" if mark else "")}><th scope="row">{row[0]}</th>'
        + "".join(
            f"<td{_class(kind)}>{cell}</td>"
            for cell, (_, kind) in zip(row[1:], headers[1:], strict=True)
        )
        + "</tr>\n"
        for row, mark in zip(rows, marks, strict=True)
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(caption)}"><table>'
        f"<caption>{text(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>\n{body}</tbody></table></div>"
    )


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def bullets(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{text(line)}</li>' for line in lines)}</ul>" if lines else ""


def text(value: str) -> str:
    return escape(words.plain(value), quote=True)


def _inert(script: str) -> str:
    """JSON that cannot end the script element it stands in."""
    return script.replace("<", "\\u003c")


def _asset(name: str) -> str:
    return resources.files("splitpoint.report").joinpath(name).read_text(encoding="utf-8")


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed, as vl-convert carries them."""
    import vl_convert

    code: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return code.replace("</script", "<\\/script")
