"""The answer on a terminal."""

import io
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from splitpoint.inputs.deployment import Topology
from splitpoint.inputs.engine import Engine
from splitpoint.inputs.huggingface import load_model
from splitpoint.inputs.trace import describe
from splitpoint.inputs.traces.synth import preset
from splitpoint.pricing.price import Price, price
from splitpoint.report import html, terminal
from splitpoint.verdict.answer import Answer, StepPart, StepTime
from splitpoint.verdict.replay import summary as summary_of
from tests.report import sample


def told(answer: Answer, width: int = 100, *, colour: bool = False) -> str:
    """What the terminal shows."""
    stream = io.StringIO()
    terminal.render(answer, Console(file=stream, width=width, force_terminal=colour))
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(cell_len(line) for line in told(sample.answer(), width).splitlines()) <= width


def test_every_number_of_every_point_survives_80_columns() -> None:
    text = told(sample.answer(), 80)
    for row in (
        "trace     8      6,200         87   41.7     2 s  38.4 ms   93.0%     100%",
        "trace     8      3,100         43   84.7  69.6 s  18.9 ms   31.0%    87.0%",
    ):
        assert row in text
    assert "…" not in text


def test_a_pipe_gets_no_colour_and_a_terminal_does() -> None:
    assert "\x1b" not in told(sample.answer())
    assert "\x1b[" in told(sample.answer(), colour=True)


def test_colour_changes_no_word() -> None:
    coloured = re.sub(r"\x1b\[[0-9;]*m", "", told(sample.answer(), colour=True))
    assert coloured == told(sample.answer())


def test_the_sections_go_from_the_price_to_the_recipe() -> None:
    text = told(sample.answer())
    heads = [
        "Workload: agentic-coding",
        "What one request costs",
        "What a GPU holds",
        "The KV walls",
        "The frontier",
        "Where TTFT goes",
        "Not simulated: 2",
        "Verdict: mixed",
        "When a split pays",
        "What would change the answer",
        "Recipe",
    ]
    places = [text.index("\n" + head) for head in heads]
    assert places == sorted(places)


def test_the_parts_of_a_step_are_told_in_shares_of_it() -> None:
    parts = (("all-reduces over 4 ranks", 1.5), ("products (bf16)", 0.47), ("sampling", 0.03))
    step = StepTime(
        name="prefill of TP4",
        deployment="4xTP4",
        words="2,000 new tokens",
        parts=tuple(StepPart(name=name, seconds=seconds) for name, seconds in parts),
    )
    answer = sample.answer(steps=(step,))
    whole = "all-reduces over 4 ranks 75.0%, products (bf16) 23.5%, other 1.5%"
    assert whole in " ".join(told(answer).split())
    assert whole in html.page(answer, {})
    assert "What a step's time" not in told(sample.answer())


def test_the_ladder_shows_what_is_taken_and_where_it_is_from() -> None:
    best = msgspec.structs.replace(sample.VERDICT.comparisons[-1], mixed="4xTP2 prefix_aware")
    verdict = msgspec.structs.replace(sample.VERDICT, comparisons=(best,))
    text = told(sample.answer(verdict=verdict), 120)
    assert re.search(r"peak activations +- 1.42 +- 1.42 +assumed: model of a 8,192-token", text)
    assert re.search(r"KV pool +26.35 +26.35 +computed", text)


def test_a_failed_share_stands_beside_the_survivors_latency() -> None:
    assert re.search(r"round_robin\n +trace .* 69.6 s .* 87.0%", told(sample.answer(), 80))


def test_a_condition_that_cannot_be_judged_says_so() -> None:
    assert "transfer below the stall it saves: cannot be judged\n" in told(sample.answer())


def test_neither_without_points_is_an_answer_too() -> None:
    verdict = msgspec.structs.replace(
        sample.VERDICT, choice="neither", chosen=None, comparisons=(), conditions=(), claims=()
    )
    text = told(sample.answer(points=(), walls=(), verdict=verdict, recipes=(), holdings=()))
    assert "no deployment could be simulated" in text
    assert "none: no deployment was chosen" in text


def test_hostile_names_reach_the_terminal_as_words() -> None:
    point = sample.point(sample.MIXED, name=sample.HOSTILE, load=sample.HOSTILE)
    text = told(sample.answer(model=sample.HOSTILE, points=(point,), notes=(sample.HOSTILE,)))
    assert "\x1b" not in text and "\u202e" not in text
    assert "[x](y)" in text


def shown(render: Callable[[Console], None], width: int = 80) -> str:
    """What a renderer prints."""
    stream = io.StringIO()
    render(Console(file=stream, width=width))
    return stream.getvalue()


ENGINE = Engine(
    kv_dtype="fp8", state_dtype="bf16", prefix_caching=False, max_len=10240, version="0.26.1"
)


def priced(**given: object) -> Price:
    """Qwen3.8-2.4T at 9,216 tokens, as vLLM's "PD serving of Qwen3.8-2.4T" counts it."""
    arguments: dict[str, Any] = {"kv_bytes": 4 * 2**30} | given
    model = load_model("Qwen/Qwen3.8-2.4T-A95B")
    return price(model, None, Topology(), ENGINE, context=9216, **arguments)


def test_a_price_shows_the_published_request() -> None:
    text = shown(lambda console: terminal.render_price(priced(), console))
    assert "759.0 MiB in 184 pages" in text
    assert "2,112 tokens" in text and "37.5%" in text and "12.7%" in text
    assert max(cell_len(line) for line in text.splitlines()) <= 80


def test_a_price_that_does_not_fit_says_by_how_much() -> None:
    text = shown(lambda console: terminal.render_price(priced(kv_bytes=2**20), console))
    assert re.search(r"does not fit: short by \d", text)


def test_a_trace_is_told_in_numbers() -> None:
    summary = describe(preset("chat", seed=0, requests=50))
    text = shown(lambda console: terminal.render_trace(summary, console))
    assert "50 requests" in text and "busiest minute" in text
    assert f"input {summary.isl.mean:,.0f} {summary.isl.p50:,.0f}" in re.sub(" +", " ", text)


def test_a_run_tells_its_failures_beside_its_latencies() -> None:
    run = sample.run(split=True)
    outcome = run.requests.outcome.copy()
    outcome[:10] = 1
    requests = msgspec.structs.replace(run.requests, outcome=outcome)
    told_run = summary_of(
        msgspec.structs.replace(run, requests=requests), sample.SPLIT, sample.answer().plan.slo
    )
    text = shown(lambda console: terminal.render_run(told_run, console))
    assert "30 done, 10 timed out; success 75.0%" in re.sub(r"\s+", " ", text)
    assert "prefill 0" in text and "decode 1" in text
    assert "steps" not in text
    first, *others = told_run.instances
    first = msgspec.structs.replace(first, decode_steps=8000, prefill_steps=60, mixed_steps=7)
    stepped = msgspec.structs.replace(told_run, instances=(first, *others))
    text = shown(lambda console: terminal.render_run(stepped, console))
    assert "rank steps  8,000 decode, 60 prefill, 7 of both" in text
    assert max(cell_len(line) for line in text.splitlines()) <= 80
