"""Results of other tools: one Run written as each of them would must come back the same."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from splitpoint import metrics
from splitpoint.errors import PlanError
from splitpoint.live import imports
from splitpoint.measurement import Measurement, Statistic, measured_run
from splitpoint.run import DONE, OUTCOMES, Run, write
from tests.live import exports


def sample(count: int = 80, *, failures: int = 0, osl: int | None = None) -> Run:
    """A client's run of 4 users at 50 to 800 input and 2 to 60 output tokens, some of it lost."""
    random = np.random.default_rng(5)
    arrive = np.cumsum(random.exponential(0.2, count))
    first = arrive + random.gamma(3, 0.05, count)
    outputs = random.integers(2, 60, count) if osl is None else np.full(count, osl)
    end = first + (outputs - 1) * random.gamma(20, 0.0005, count)
    lost = np.arange(count) < failures
    return measured_run(
        "made",
        arrive_s=arrive,
        first_token_s=np.where(lost, np.nan, first),
        end_s=np.where(lost, np.nan, end),
        isl=random.integers(50, 800, count),
        osl=outputs,
        outcome=np.where(lost, OUTCOMES.index("timed_out"), DONE),
    )


def read(path: Path) -> Measurement:
    (found,) = imports.read(path)
    return found


def close(found: Statistic, values: metrics.Floats, *, rel: float = 1e-6) -> bool:
    """Whether mean and percentiles are those of the values."""
    assert found.mean and found.p50 and found.p90 and found.p99
    known = values[~np.isnan(values)]
    ours = [found.mean.value, found.p50.value, found.p90.value, found.p99.value]
    theirs = [known.mean(), *np.percentile(known, [50, 90, 99])]
    return ours == pytest.approx(theirs, rel=rel)


Writer = Callable[[Run, Path], Path]
SUMMARIES: dict[str, Writer] = {
    "vllm": lambda run, tmp: exports.written(tmp / "a.json", exports.vllm_bench(run)),
    "aiperf": lambda run, tmp: exports.written(tmp / "a.json", exports.aiperf_summary(run)),
}
DETAILS: dict[str, Writer] = {
    "vllm": lambda run, tmp: exports.written(
        tmp / "a.json", exports.vllm_bench(run, detailed=True)
    ),
    "aiperf": lambda run, tmp: exports.written(tmp / "a.jsonl", exports.aiperf_lines(run)),
    "guidellm": lambda run, tmp: exports.written(tmp / "a.json", exports.guidellm(run)),
}


@pytest.mark.parametrize("tool", SUMMARIES)
def test_a_summary_comes_back_under_our_names(tool: str, tmp_path: Path) -> None:
    run = sample(failures=3)
    found = read(SUMMARIES[tool](run, tmp_path))
    assert (found.requests, found.concurrency, found.run) == (80, 4, None)
    assert found.success == pytest.approx(77 / 80)
    assert close(found.ttft, metrics.ttft(run))
    assert close(found.tpot, metrics.tpot(run))
    assert close(found.e2el, metrics.e2el(run))
    whole = metrics.whole_throughput(run)
    assert found.whole is not None
    assert found.whole.output == pytest.approx(whole.output)
    assert found.whole.input == pytest.approx(whole.input)


@pytest.mark.parametrize("tool", DETAILS)
def test_every_request_comes_back_with_its_moments(tool: str, tmp_path: Path) -> None:
    run = sample(failures=3)
    found = read(DETAILS[tool](run, tmp_path))
    assert found.run is not None and len(found.run.requests) == 80
    ours, theirs = found.run.requests, run.requests
    done = theirs.outcome == DONE
    assert ((ours.outcome == DONE) == done).all()
    np.testing.assert_allclose(ours.arrive_s - ours.arrive_s[0], theirs.arrive_s, atol=2e-6)
    np.testing.assert_allclose(metrics.ttft(found.run), metrics.ttft(run), atol=2e-6)
    np.testing.assert_allclose(metrics.tpot(found.run), metrics.tpot(run), atol=2e-6)
    assert (ours.isl[done] == theirs.isl[done]).all() and (ours.osl[done] == theirs.osl[done]).all()
    assert found.success == pytest.approx(77 / 80)


def test_how_lengths_vary_is_kept_where_it_is_told(tmp_path: Path) -> None:
    run = sample()
    varied = float(run.requests.osl.std() / run.requests.osl.mean())
    report = exports.written(tmp_path / "g.json", exports.guidellm(run, detailed=False))
    for found in (
        read(SUMMARIES["aiperf"](run, tmp_path)),
        read(DETAILS["vllm"](run, tmp_path)),
        read(report),
    ):
        assert found.osl_cv == pytest.approx(varied)
    assert read(SUMMARIES["vllm"](run, tmp_path)).osl_cv == 0


def test_an_error_keeps_its_kind(tmp_path: Path) -> None:
    found = read(DETAILS["aiperf"](sample(failures=2), tmp_path))
    assert found.run is not None
    assert (found.run.requests.outcome == OUTCOMES.index("timed_out")).sum() == 2
    assert found.notes == ("1 warm-up requests left out",)


def test_itl_of_guidellm_is_a_mean_gap_counted_once_for_every_gap(tmp_path: Path) -> None:
    run = sample()
    path = exports.written(tmp_path / "a.json", exports.guidellm(run, detailed=False))
    found = read(path)
    gaps = metrics.itl(run)
    assert found.run is None and found.itl.of == "mean gaps" and found.itl.mean is not None
    assert found.itl.mean.value == pytest.approx(np.average(gaps.seconds, weights=gaps.counts))
    # Its own "time per output token" counts the first token, so it is no TPOT.
    assert found.tpot == Statistic()


def test_itl_of_chunks_is_told_from_gaps_at_their_requests_mean(tmp_path: Path) -> None:
    assert read(SUMMARIES["vllm"](sample(), tmp_path)).itl.of == "gaps"
    assert read(DETAILS["vllm"](sample(), tmp_path)).itl.of == "gaps"
    write(sample(), tmp_path / "run.npz")
    assert read(tmp_path / "run.npz").itl.of == "mean gaps"


def test_what_the_end_of_a_benchmark_cut_off_is_no_failure(tmp_path: Path) -> None:
    found = read(DETAILS["guidellm"](sample(failures=3), tmp_path))
    assert found.requests == 80 and found.success == pytest.approx(77 / 80)
    assert found.notes == ("2 requests that the benchmark's end cut off are left out",)


def test_the_load_is_found_wherever_a_version_keeps_it(tmp_path: Path) -> None:
    made = exports.aiperf_summary(sample())
    made["input_config"] = {"loadgen": {"concurrency": 7}}
    assert read(exports.written(tmp_path / "a.json", made)).concurrency == 7
    made["input_config"] = {"phases": [{"name": "profiling", "rate": 2.5}]}
    found = read(exports.written(tmp_path / "b.json", made))
    assert (found.concurrency, found.rate) == (None, 2.5)
    report = exports.guidellm(sample(), detailed=False)
    report["benchmarks"][0]["config"]["strategy"] = {"type_": "synchronous"}
    assert read(exports.written(tmp_path / "c.json", report)).concurrency == 1
    report["benchmarks"][0]["config"]["strategy"] = {"type_": "constant", "rate": 5.0}
    assert read(exports.written(tmp_path / "d.json", report)).rate == 5


def test_latencies_stand_in_for_the_gaps(tmp_path: Path) -> None:
    run = sample()
    made = exports.vllm_bench(run, detailed=True)
    made["latencies"] = metrics.e2el(run).tolist()
    del made["itls"]
    found = read(exports.written(tmp_path / "a.json", made))
    assert close(found.tpot, metrics.tpot(run))


def test_arrivals_that_nobody_wrote_down_make_no_run(tmp_path: Path) -> None:
    made = exports.vllm_bench(sample(), detailed=True)
    del made["start_times"]
    assert read(exports.written(tmp_path / "a.json", made)).run is None


def test_an_inferencex_row_counts_its_gpus(tmp_path: Path) -> None:
    run = sample(osl=50)
    row = exports.inferencex(run, gpus=8)
    found = imports.read(exports.written(tmp_path / "rows.json", [row, row]))
    assert [one.gpus for one in found] == [8, 8]
    whole = metrics.whole_throughput(run)
    assert found[0].whole is not None
    assert found[0].whole.output == pytest.approx(whole.output)
    assert found[0].whole.input == pytest.approx(whole.input)
    assert close(found[0].tpot, metrics.tpot(run))
    # Split: output is divided by the decode GPUs only, input by the prefill GPUs.
    split = row | {"disagg": True, "num_prefill_gpu": 4, "num_decode_gpu": 12}
    split["metrics"] = row["metrics"] | {
        "tput_per_gpu": whole.total / 16,
        "output_tput_per_gpu": whole.output / 12,
    }
    (again,) = imports.read(exports.written(tmp_path / "one.json", split))
    assert again.gpus == 16 and again.whole is not None
    assert again.whole.output == pytest.approx(whole.output)


def test_a_table_gives_a_measurement_a_row(tmp_path: Path) -> None:
    shared = {"hardware": "b200", "disagg": "False", "isl": 1000, "osl": 100, "gpus": 4}
    rows = [
        shared | {"conc": users, "tput": 1100 * users, "ttft": 0.1, "tpot": 0.01}
        for users in (1, 2)
    ]
    found = imports.read(exports.written_csv(tmp_path / "t.csv", rows))
    assert [one.concurrency for one in found] == [1, 2]
    assert found[1].whole is not None and found[1].whole.output == pytest.approx(2200 * 4 / 11)
    assert found[1].isl == 900 and found[1].isl_cv == pytest.approx(0.0642, abs=1e-4)
    assert found[1].ttft.p50 is not None and found[1].ttft.mean is None
    bench = imports.read(exports.written_csv(tmp_path / "b.csv", [exports.vllm_bench(sample())]))
    assert bench[0].ttft == read(SUMMARIES["vllm"](sample(), tmp_path)).ttft


def test_an_engines_requests_meet_on_one_clock(tmp_path: Path) -> None:
    lines = [
        {"input_toks": 10, "output_toks": 5, "arrival_time": 100.0 + i, "queued_ts": 7.5 + i + late,
         "scheduled_ts": 8.0 + i, "first_token_ts": 9.0 + i, "last_token_ts": 9.4 + i}
        for i, late in enumerate((0.2, 0.0, 0.1))
    ]  # fmt: skip
    path = exports.written(tmp_path / "r.jsonl", "".join(json.dumps(x) + "\n" for x in lines))
    found = read(path)
    assert found.run is not None
    np.testing.assert_allclose(metrics.ttft(found.run), 1.5)
    np.testing.assert_allclose(metrics.tpot(found.run), 0.1)


def test_one_of_several_results_is_picked(tmp_path: Path) -> None:
    row = exports.inferencex(sample(), gpus=1)
    path = exports.written(tmp_path / "rows.json", [row, row | {"conc": 9}])
    found = imports.read(path)
    assert imports.pick(found, path, 2).concurrency == 9
    with pytest.raises(PlanError, match=r"holds 2 results \(--row 1 to 2\)"):
        imports.pick(found, path, None)
    with pytest.raises(PlanError, match="no result 3"):
        imports.pick(found, path, 3)


def refused(path: Path) -> str:
    with pytest.raises(PlanError) as told:
        imports.read(path)
    line = str(told.value)
    assert path.name in line and "\n" not in line
    return line


BROKEN: list[tuple[str, Any, str]] = [
    ("completed", "many", "completed: expected"),
    ("completed", -1, "completed: is -1"),
    ("completed", 0, "completed: is 0"),
    ("completed", 1.5, "completed: is 1.5"),
    ("duration", None, "duration: is missing"),
    ("duration", 0, "duration: is 0"),
    ("mean_ttft_ms", [1], "mean_ttft_ms: expected"),
    ("p99_tpot_ms", 1e300, "p99_tpot_ms: is 1e+300"),
    ("ttfts", [0.1, "x"], "ttfts[1]: expected"),
    ("output_lens", [5], "output_lens: has 1 entries where start_times has 80"),
    ("input_lens", [1e10] * 80, "input_lens: is 1e+10"),
    ("ttfts", [-0.1] * 80, "ttfts: is -0.1"),
    ("itls", [[0.1, None]] * 80, "itls[0][1]: expected"),
    ("errors", [], "errors: has 0 entries"),
    ("start_times", {}, "start_times: expected"),
]


@pytest.mark.parametrize(("field", "value", "told"), BROKEN)
def test_a_broken_field_is_named(field: str, value: Any, told: str, tmp_path: Path) -> None:
    made = exports.vllm_bench(sample(), detailed=True) | {field: value}
    assert told in refused(exports.written(tmp_path / "a.json", made))


def test_a_broken_field_inside_objects_is_named_with_its_path(tmp_path: Path) -> None:
    report = exports.guidellm(sample())
    report["benchmarks"][0]["metrics"]["request_latency"]["successful"]["mean"] = "slow"
    line = refused(exports.written(tmp_path / "a.json", report))
    assert "benchmarks[0].metrics.request_latency.successful.mean: expected" in line
    records = exports.aiperf_lines(sample()).replace('"unit": "ms"', '"unit": "fortnights"', 1)
    line = refused(exports.written(tmp_path / "a.jsonl", records))
    assert "line 2: metrics.time_to_first_token.unit: is 'fortnights'" in line


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", ""),
        ("a.json", "{"),
        ("a.json", "null"),
        ("a.json", "[]"),
        ("a.json", "{}"),
        ("a.json", '{"completed": NaN, "duration": 1}'),
        ("a.json", '{"completed": 1e999, "duration": 1}'),
        ("a.json", "[" * 100_000),
        ("a.json", '{"benchmarks": []}'),
        ("a.json", '{"benchmarks": [{"metrics": {}}]}'),
        ("a.json", "\xff\xfe\x00"),
        ("a.jsonl", ""),
        ("a.jsonl", "{}\n"),
        ("a.jsonl", '{"metadata": {}}\n'),
        ("a.csv", ""),
        ("a.csv", "a,b\n1\n"),
        ("a.csv", "a,b\n1,2\n"),
        ("a.csv", 'conc,"tput\n'),
        ("a.txt", "hello"),
        ("a.npz", "not a zip"),
    ],
)
def test_what_is_no_result_ends_in_one_line(name: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode("latin-1"))
    refused(path)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(10 * 1024**3)
    assert "is larger than 512 MiB" in refused(path)


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    assert "is a folder" in refused(tmp_path / "folder.json")
    assert "no such file" in refused(tmp_path / "absent.json")


SAMPLES: list[dict[str, Any]] = [
    exports.vllm_bench(sample(12), detailed=True),
    exports.aiperf_summary(sample(12)),
    exports.guidellm(sample(12)),
    exports.inferencex(sample(12), gpus=2),
]
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5),
    st.lists(st.integers(), max_size=3), st.dictionaries(st.text(max_size=3), st.integers()),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_field_may_hold_anything(data: st.DataObject, tmp_path_factory: Any) -> None:
    made = json.loads(json.dumps(data.draw(st.sampled_from(SAMPLES))))
    holder: Any = made
    while True:
        key = data.draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else [0]))
        inner = holder[key]
        if not (isinstance(inner, dict | list) and inner and data.draw(st.booleans())):
            break
        holder = inner
    holder[key] = data.draw(JUNK)
    path = exports.written(tmp_path_factory.mktemp("any") / "a.json", made)
    try:
        found = imports.read(path)
    except PlanError as error:
        assert "\n" not in str(error)
        return
    for one in found:
        for statistic in (one.ttft, one.tpot, one.itl, one.e2el):
            for estimate in (statistic.mean, statistic.p50, statistic.p90, statistic.p99):
                assert estimate is None or 0 <= estimate.value <= 1e12


def test_a_run_of_our_own_says_where_it_is_from(tmp_path: Path) -> None:
    write(replace(sample(), name="ours", gpus=6), tmp_path / "r.npz")
    found = read(tmp_path / "r.npz")
    assert (found.name, found.gpus, found.origin) == ("ours", 6, "measured")
    assert found.hit_share is None
