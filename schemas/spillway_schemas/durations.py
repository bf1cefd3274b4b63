"""Lengths of time as a query writes them: `10 minutes`, `500 ms`, `-5 seconds`."""

from __future__ import annotations

import re

UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
}
"""The units' singulars and their lengths; `s`, `min` and `h` are the short ones."""
_SHORT = {"s": "second", "min": "minute", "h": "hour", "d": "day"}
_DURATION = re.compile(r"([+-]?)\s*(\d{1,12})\s*([a-z]+)")
MOST_US = 366 * UNITS_US["day"]
"""No length is greater: sums of times and lengths stay far within 64 bits."""


def duration_us(text: str, *, signed: bool = False) -> int:
    """A length in us. `signed`: it may be less than 0. Raises ValueError that says what is allowed.

    >>> duration_us("10 minutes")
    600000000
    """
    match = _DURATION.fullmatch(text.strip().lower())
    name = match[3] if match else ""
    unit = _SHORT.get(name, name.removesuffix("s") if name not in UNITS_US else name)
    if match is not None and match[1] == "-" and not signed:
        raise ValueError(f"{text!r} is less than nothing; write it without the sign")
    if match is None or unit not in UNITS_US or (match[1] and not signed):
        example = "-5 seconds" if signed else "10 minutes"
        units = "us, ms, seconds, minutes, hours or days"
        raise ValueError(
            f"{text!r} is not a length of time; write a whole number of {units}, e.g. {example!r}"
        )
    found = int(match[2]) * UNITS_US[unit]
    if found > MOST_US:
        raise ValueError(f"{text!r} is more than 366 days")
    return -found if match[1] == "-" else found


def duration_text(us: int) -> str:
    """A length for people, in the largest unit of which it is a whole number.

    >>> duration_text(90_000_000)
    '90 seconds'
    """
    if not us:
        return "0 seconds"
    size, name = next(
        (size, name) for name, size in reversed(UNITS_US.items()) if not us % size or size == 1
    )
    number = us // size
    return f"{number:,} {name}" + ("s" if name not in ("us", "ms") and abs(number) != 1 else "")
