"""Units: what is read is exact, and what is printed says its unit."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitpoint import units
from splitpoint.errors import PlanError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("28.7 GiB", 30816390348),
        ("28.7 GB", 28_700_000_000),
        ("28.7GiB", 30816390348),
        (" 1 tib ", 1024**4),
        ("512 MiB", 512 * 1024**2),
        ("3 KB", 3000),
        ("98304 B", 98304),
        ("1e3 MB", 10**9),
        ("0 GB", 0),
        (98304, 98304),
    ],
)
def test_a_size_says_decimal_or_binary(text: str | int, size: int) -> None:
    assert units.parse_size(text) == size


@pytest.mark.parametrize("text", ["28.7", "28.7 G", "28.7 Gib/s", "", "GiB", "-1 GiB", "nan GiB"])
def test_a_size_without_a_clear_unit_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match=r"28\.7 GiB"):
        units.parse_size(text, "--kv-bytes-available")


@pytest.mark.parametrize("number", [-1, 2**63, True])
def test_a_number_of_bytes_is_whole_and_in_range(number: int) -> None:
    with pytest.raises(PlanError):
        units.parse_size(number)


def test_a_size_past_64_bits_is_refused_without_computing_it() -> None:
    with pytest.raises(PlanError, match="past 2"):
        units.parse_size("1e99 TiB")


@given(st.integers(0, 10**9), st.integers(1, 10**6))
def test_a_need_rounds_up(size: int, unit: int) -> None:
    up = units.ceil_div(size, unit)
    assert (up - 1) * unit < size <= up * unit


@pytest.mark.parametrize(
    ("size", "text"),
    [(30816390348, "28.7 GiB"), (5 * 1024**3, "5.00 GiB"), (1234 * 1024**3, "1,234.0 GiB")],
)
def test_memory_prints_in_gib(size: int, text: str) -> None:
    assert units.gib(size) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (98, "98 B"),
        (98304, "96.0 KiB"),
        # 759.0 MiB: one request of Qwen3.8-2.4T, 184 blocks of 2,112 tokens x 2,048 bytes.
        (184 * 2112 * 2048, "759.0 MiB"),
        (1024**3, "1.00 GiB"),
    ],
)
def test_memory_of_any_size_prints_in_the_unit_that_suits(size: int, text: str) -> None:
    assert units.memory(size) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (12.34e-6, "12.3 us"),
        (0.0012, "1.2 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (5.018, "5.02 s"),
        (62.8, "62.8 s"),
        (570.0, "9.5 min"),
        (7200.0, "2 h"),
        (math.inf, "never"),
        (math.nan, "unknown"),
    ],
)
def test_a_time_prints_in_the_unit_that_suits(value: float, text: str) -> None:
    assert units.seconds(value) == text


def test_rates_counts_and_shares_print_with_their_units() -> None:
    assert units.rate(12031, "tok") == "12,031 tok/s"
    assert units.rate(0.524, "req") == "0.524 req/s"
    assert units.bandwidth(4e12) == "4,000 GB/s"
    assert units.bandwidth(3.5e9) == "3.5 GB/s"
    assert units.count(12031) == "12,031"
    assert (units.gpus(1), units.gpus(1024)) == ("1 GPU", "1,024 GPUs")
    assert units.percent(0.375) == "37.5%"


@given(st.floats(1e-6, 1e6))
def test_a_printed_time_reads_back_within_half_a_percent(value: float) -> None:
    number, unit = units.seconds(value).replace(",", "").split()
    factor = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}[unit]
    assert float(number) * factor == pytest.approx(value, rel=0.005)
