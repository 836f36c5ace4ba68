"""The page: self-contained, complete, accessible, and deaf to what names try to be."""

import json
import re
from html.parser import HTMLParser

import msgspec
import pytest

from splitpoint.report import document, html, words
from tests.report import sample

VOID = {"meta", "br", "link", "img", "input", "hr"}
RUNS = {
    "P 6xTP1 + D 2xTP1 prefix_aware": sample.run(split=True),
    "8xTP1 prefix_aware": sample.run(),
}


class Reader(HTMLParser):
    """Reads a page strictly: elements must close in order; keeps what the tests ask about."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif not self.open or self.open[-1] != "style":
            self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module")
def page() -> str:
    return html.page(sample.answer(), RUNS)


@pytest.fixture(scope="module")
def reader(page: str) -> Reader:
    return Reader(page)


def test_elements_close_and_ids_are_unique(reader: Reader) -> None:
    assert reader.open == []
    ids = [attrs["id"] for _, attrs in reader.elements if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_nothing_is_fetched_from_anywhere(page: str, reader: Reader) -> None:
    for tag, attrs in reader.elements:
        assert "src" not in attrs, tag
        assert attrs.get("href", "#").startswith("#")  # type: ignore[union-attr]
    assert "url(" not in document._asset("page.css") and "@import" not in document._asset(
        "page.css"
    )
    assert "default-src 'none'" in page and "unsafe-eval" not in page


def test_the_verdict_is_the_first_heading_and_its_numbers_follow(reader: Reader) -> None:
    text = " ".join(reader.text)
    assert text.index(sample.VERDICT.headline) < text.index("8xTP1 prefix_aware")
    for number in ("6,200", "41.7", "2 s", "38.4 ms", "93.0%"):
        assert number in text


def test_every_number_of_every_point_stands_in_a_table(reader: Reader) -> None:
    text = " ".join(reader.text)
    for point in sample.points():
        for told in (
            words.count(point.total_tok_s_gpu),
            words.count(point.output_tok_s_gpu),
            words.seconds(point.ttft.at_slo),
            words.seconds(point.tpot.at_slo),
            words.percent(point.attainment),
            point.name,
        ):
            assert told in text


def test_every_figure_has_words_and_a_spec_of_plain_data(reader: Reader) -> None:
    charts = [attrs for attrs in reader.all("div") if attrs.get("class") == "chart"]
    specs = {attrs["id"]: code for attrs, code in reader.scripts if "id" in attrs}
    assert len(charts) == 6
    for chart in charts:
        assert chart["role"] == "img" and len(chart["aria-label"] or "") > 40
        assert json.loads(specs[chart["data-spec"]])["layer"]


def test_tables_have_captions_and_headers_with_scope(reader: Reader) -> None:
    assert len(reader.all("table")) == len(reader.all("caption")) > 8
    assert all(attrs.get("scope") in ("col", "row") for attrs in reader.all("th"))


def test_origins_are_marked_with_their_source(page: str) -> None:
    assert (
        '<span class="origin assumed" title="assumed: 3.5 GB/s per transfer">assumed</span>' in page
    )


def test_navigation_leads_to_sections_that_exist(reader: Reader) -> None:
    ids = {attrs["id"] for _, attrs in reader.elements if "id" in attrs}
    links = [attrs["href"] for attrs in reader.all("a")]
    assert len(links) >= 8
    assert all(link is not None and link[1:] in ids for link in links)


def test_hostile_names_stay_words(reader: Reader) -> None:
    bad = sample.HOSTILE
    point = sample.point(sample.MIXED, name=bad, load=bad)
    figure = sample.figure(bad, 1.0, bad, "assumed", bad)
    answer = sample.answer(
        model=bad,
        gpu=bad,
        notes=(bad,),
        recipes=(bad,),
        points=(point,),
        assumptions=(figure,),
        plan=msgspec.structs.replace(sample.answer().plan, name=bad),
        verdict=msgspec.structs.replace(
            sample.VERDICT, chosen=bad, headline=bad, reasons=(bad,), rests_on=(bad,)
        ),
        walls=(sample.wall("mixed", bad, 0.5, bad),),
        holdings=(msgspec.structs.replace(sample.HOLDINGS[0], topology=bad),),
    )
    hostile = Reader(html.page(answer, {bad: sample.run()}))
    assert len(hostile.scripts) <= len(reader.scripts)
    assert not any(code == "alert(1)" for _, code in hostile.scripts)
    attributes = {name for _, attrs in hostile.elements for name in attrs}
    assert not any(name.startswith("on") for name in attributes)
    assert "<script>alert(1)</script>" in " ".join(hostile.text)
    assert all("<" not in code for attrs, code in hostile.scripts if "id" in attrs)


def test_a_large_answer_stays_below_three_mebibytes() -> None:
    many = tuple(
        msgspec.structs.replace(point, name=f"{point.name} {i}", load=f"{2**i} users")
        for i in range(12)
        for point in sample.points()
    )
    chosen = "8xTP1 prefix_aware 0"
    best = msgspec.structs.replace(
        sample.VERDICT.comparisons[-1], split="P 6xTP1 + D 2xTP1 prefix_aware 0", mixed=chosen
    )
    verdict = msgspec.structs.replace(sample.VERDICT, chosen=chosen, comparisons=(best,))
    answer = sample.answer(
        points=many,
        verdict=verdict,
        holdings=sample.HOLDINGS * 40,
        rejected=sample.answer().rejected * 300,
    )
    runs = {
        best.split: sample.run(split=True, instances=96, rows=300),
        best.mixed: sample.run(instances=96, rows=300),
    }
    text = html.page(answer, {name: run for name, run in runs.items() if name})
    assert text.count("<h3>KV use over time") == 2
    assert len(text.encode()) < 3 * 2**20


def test_an_answer_without_points_is_a_page_too() -> None:
    verdict = msgspec.structs.replace(
        sample.VERDICT,
        choice="neither",
        chosen=None,
        comparisons=(),
        conditions=(),
        claims=(),
        rests_on=(),
    )
    answer = sample.answer(
        points=(),
        walls=(),
        holdings=(),
        verdict=verdict,
        recipes=(),
        assumptions=(),
        notes=(),
        rejected=(),
    )
    text = " ".join(Reader(html.page(answer, {})).text)
    assert "No deployment could be simulated." in text
    assert "None: no deployment was chosen." in text


def test_without_a_choice_the_nearest_of_each_arm_stand_in_front() -> None:
    verdict = msgspec.structs.replace(sample.VERDICT, choice="neither", chosen=None)
    page = html.page(sample.answer(verdict=verdict), {})
    front = page[: page.index("<main>")]
    assert "nearest split" in front and "nearest mixed" in front and "84.0%" in front


def test_runs_that_are_not_at_hand_leave_their_figure_out() -> None:
    assert "KV use over time" not in html.page(sample.answer(), {})


def test_the_theme_uses_no_colour_outside_its_variables() -> None:
    css = document._asset("page.css")
    rules = re.sub(r":root[^{]*\{[^}]*\}", "", css)
    assert re.findall(r"#[0-9a-f]{6}\b", rules) == []
