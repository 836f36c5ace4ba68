"""Sizes, times and rates: read from words, and printed as words.

Inside, everything is bytes, seconds, tokens and bytes per second. Memory prints in GiB and
bandwidth in decimal GB/s; a size must say which of the two it means.
"""

import math
import re
from decimal import Decimal

from splitpoint.errors import PlanError

KIB = 1024
MIB = 1024**2
GIB = 1024**3
GB = 10**9

_SIZES = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1024**4,
}
# Digits are bounded so that a hostile exponent cannot make a number of millions of digits.
_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE]\+?[0-9]{1,2})?)\s*([a-zA-Z]*)")
_MAX_SIZE = 2**63 - 1

# Up to which seconds a unit is used; 0.9995 of a power is where three digits round to 1,000.
_TIMES = ((0.9995e-3, 1e6, "us"), (0.9995, 1e3, "ms"), (120.0, 1.0, "s"), (7200.0, 1 / 60, "min"))


def parse_size(text: str | int, where: str = "size") -> int:
    """Bytes of "28.7 GiB" (2^30), "28.7 GB" (10^9) or a whole number of bytes; rounded down."""
    hint = "such as 28.7 GiB (2^30 bytes) or 28.7 GB (10^9 bytes)"
    if isinstance(text, int):
        if isinstance(text, bool) or not 0 <= text <= _MAX_SIZE:
            raise PlanError(where, f"{text} is not a number of bytes", hint)
        return text
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise PlanError(where, f"{text[:60]!r} is not a size", hint)
    number, unit = found.groups()
    if not unit:
        raise PlanError(where, f"{text[:60]!r} does not say its unit", hint)
    if unit.lower() not in _SIZES:
        raise PlanError(where, f"{unit[:20]!r} is not a unit of memory", hint)
    size = math.floor(Decimal(number) * _SIZES[unit.lower()])
    if size > _MAX_SIZE:
        raise PlanError(where, f"{text[:60]!r} is past 2^63 bytes", hint)
    return size


def ceil_div(need: int, unit: int) -> int:
    """Whole units that cover a need: need / unit, rounded up."""
    return -(-need // unit)


def gib(size: float) -> str:
    """Bytes as GiB: "26.7 GiB", with two decimals under ten."""
    value = size / GIB
    return f"{value:,.1f} GiB" if abs(value) >= 10 else f"{value:.2f} GiB"


def memory(size: float) -> str:
    """Bytes in the binary unit that suits them: "98 B", "96.0 KiB", "759.0 MiB", "26.7 GiB"."""
    if abs(size) < KIB:
        return f"{size:.0f} B"
    if abs(size) < MIB:
        return f"{size / KIB:.1f} KiB"
    if abs(size) < GIB:
        return f"{size / MIB:.1f} MiB"
    return gib(size)


def seconds(value: float) -> str:
    """A time in the unit that suits it, three digits: "12.3 us", "1.2 ms", "5.02 s", "9.5 min"."""
    if not math.isfinite(value):
        return "never" if value > 0 else "unknown"
    if value == 0:
        return "0 s"
    for limit, factor, unit in _TIMES:
        if abs(value) < limit:
            return f"{_three(value * factor)} {unit}"
    return f"{_three(value / 3600)} h"


def rate(value: float, unit: str) -> str:
    """A rate per second: "12,031 tok/s", "0.52 req/s" with unit "tok" or "req"."""
    return f"{_three(value)} {unit}/s"


def bandwidth(value: float) -> str:
    """Bytes per second as decimal GB/s: "4,000 GB/s", "3.5 GB/s"."""
    return f"{_three(value / GB)} GB/s"


def count(value: float) -> str:
    """A count with thousands: "12,031"."""
    return f"{value:,.0f}"


def gpus(number: int) -> str:
    """A number of GPUs: "1 GPU", "1,024 GPUs"."""
    return f"{number:,} GPU{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """A share of one: "37.5%"."""
    return f"{share * 100:.1f}%"


def _three(value: float) -> str:
    """Three digits at least, no exponent, no trailing zeros behind the point."""
    if not math.isfinite(value):
        return "unknown" if math.isnan(value) else str(value)
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(decimals, 9)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
