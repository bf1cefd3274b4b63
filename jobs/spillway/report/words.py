"""Numbers as people read them: bytes, counts, spans of time. One way for terminal and page."""

from __future__ import annotations

from collections.abc import Sequence

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
_UNKNOWN = "–"


def bytes_text(size: float | None) -> str:
    """`1.5 MiB`; three digits at most."""
    if size is None:
        return _UNKNOWN
    unit = 0
    while abs(size) >= 999.5 and unit < len(_BYTES) - 1:
        size, unit = size / 1024, unit + 1
    return f"{_three(size)} {_BYTES[unit]}" if unit else f"{size:.0f} B"


def count_text(count: int | None) -> str:
    """`1,234,567`."""
    return _UNKNOWN if count is None else f"{count:,}"


def rate_text(per_s: float, word: str) -> str:
    """`1,235 rows/s`."""
    number = f"{per_s:,.0f}" if per_s >= 9.95 or per_s == 0 else f"{per_s:.1f}"
    return f"{number} {word}/s"


def span_text(seconds: float | None) -> str:
    """`950 ms`, `12.3 s`, `4 min 5 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds is None:
        return _UNKNOWN
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, name, below, below_name in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= unit:
            rest = whole % unit // below
            return f"{whole // unit} {name}" + (f" {rest} {below_name}" if rest else "")
    return f"{whole} s"


def ms_text(ms: float | None) -> str:
    """A span given in milliseconds."""
    return _UNKNOWN if ms is None else span_text(ms / 1000)


def part_text(part: float) -> str:
    """`45 %`."""
    return f"{100 * part:.0f} %"


def clock_text(rfc3339: str | None) -> str:
    """`14:30:05 UTC` of a time as the journal writes it, with its date before it."""
    if rfc3339 is None:
        return _UNKNOWN
    return f"{rfc3339[:10]} {rfc3339[11:19]} UTC"


def or_text(names: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def times_text(count: int, word: str) -> str:
    """`1 spill`, `3 spills`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def visible(text: str) -> str:
    """Text from outside on one line: control characters, which move a cursor, made visible."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _three(value: float) -> str:
    return (
        f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
    )
