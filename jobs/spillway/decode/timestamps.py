"""RFC 3339 text to microseconds in UTC, whole columns at a time.

Texts of one length have their digits at the same places, so a column is cut by length into
byte matrices and every digit position becomes one small vector. Lengths that no common form
has are left to `spillway_schemas.messages.parse_timestamp`, which is the definition; what this
module accepts, it reads the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spillway_schemas.messages import YEARS_US

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_SECONDS = len("2026-01-05T14:30:00")
_LONGEST = _SECONDS + len(".123456789") + len("+00:00")
_DIGITS = (0, 1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18)

_MICROS_MIN, _MICROS_MAX = YEARS_US


def _months() -> tuple[npt.NDArray[np.int32], Bytes]:
    """First day (since 1970) and number of days of every month of the years 0 to 9999."""
    starts = np.arange(-1970 * 12, 8030 * 12 + 1).astype("M8[M]").astype("M8[D]").astype(np.int32)
    lengths = np.diff(starts).astype(np.uint8)
    lengths[:12] = 0  # the year 0 has no days
    return starts[:-1], lengths


_MONTH_START, _MONTH_DAYS = _months()


def parse_timestamps(texts: Any) -> tuple[Ints, Mask]:
    """Microseconds since 1970 (int64) of a pyarrow string array, and which of them hold.

    Where the mask is false (null, malformed, or a form that is not handled here) the number
    means nothing.
    """
    n = len(texts)
    micros = np.zeros(n, np.int64)
    valid = np.zeros(n, np.bool_)
    if n == 0:
        return micros, valid
    ends = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + n + 1]
    data = texts.buffers()[2]
    if data is None or not data.size:
        return micros, valid
    bytes_ = np.frombuffer(data, np.uint8)
    starts, lengths = ends[:-1], np.diff(ends)
    if lengths[0] == lengths[-1] and (lengths == lengths[0]).all():
        length = int(lengths[0])
        if _SECONDS < length <= _LONGEST:
            matrix = bytes_[int(ends[0]) : int(ends[-1])].reshape(n, length)
            micros, valid = _parse(np.ascontiguousarray(matrix.T))
    else:
        counts = np.bincount(np.minimum(lengths, _LONGEST + 1), minlength=_LONGEST + 1)
        for length in np.flatnonzero(counts[: _LONGEST + 1]).tolist():
            if length > _SECONDS:
                rows = np.flatnonzero(lengths == length)
                matrix = bytes_[starts[rows].astype(np.int64) + np.arange(length)[:, None]]
                micros[rows], valid[rows] = _parse(matrix)
    if texts.null_count:
        valid &= np.asarray(texts.is_valid())
    return micros, valid


def _parse(text: Bytes) -> tuple[Ints, Mask]:
    """Texts of one length, a row for each place (length, n) -> microseconds, valid."""
    length = len(text)
    zulu = (text[-1] | 0x20) == ord("z")
    if zulu.all():
        return _parse_local(text, length - 1)
    if not zulu.any():
        return _parse_offset(text)
    micros = np.zeros(text.shape[1], np.int64)
    valid = np.zeros(text.shape[1], np.bool_)
    for rows, parse in ((zulu, None), (~zulu, _parse_offset)):
        part = text[:, rows]
        micros[rows], valid[rows] = parse(part) if parse else _parse_local(part, length - 1)
    return micros, valid


def _parse_offset(text: Bytes) -> tuple[Ints, Mask]:
    """Texts that end in +hh:mm or -hh:mm."""
    size = len(text) - 6
    if size < _SECONDS:
        return np.zeros(text.shape[1], np.int64), np.zeros(text.shape[1], np.bool_)
    digits = [text[size + at] - np.uint8(48) for at in (1, 2, 4, 5)]
    hour, minute = digits[0] * np.uint8(10) + digits[1], digits[2] * np.uint8(10) + digits[3]
    sign = text[size]
    valid = np.maximum.reduce(digits) <= 9
    valid &= (hour <= 23) & (minute <= 59) & (text[size + 3] == ord(":"))
    valid &= (sign == ord("+")) | (sign == ord("-"))
    shift = (hour.astype(np.int64) * 60 + minute) * 60_000_000
    micros, local = _parse_local(text, size)
    micros = np.where(sign == ord("-"), micros + shift, micros - shift)
    return micros, valid & local & (micros >= _MICROS_MIN) & (micros <= _MICROS_MAX)


def _parse_local(text: Bytes, size: int) -> tuple[Ints, Mask]:
    """The first `size` bytes: date, time and fraction, without the offset."""
    fraction = size - _SECONDS
    if fraction == 1:  # a point and no digit
        return np.zeros(text.shape[1], np.int64), np.zeros(text.shape[1], np.bool_)
    digit = {at: text[at] - np.uint8(48) for at in (*_DIGITS, *range(_SECONDS + 1, size))}
    valid = np.maximum.reduce(list(digit.values())) <= 9
    for at, byte in ((4, b"-"), (7, b"-"), (13, b":"), (16, b":")):
        valid &= text[at] == byte[0]
    between = text[10]
    valid &= ((between | 0x20) == ord("t")) | (between == ord(" "))
    if fraction:
        valid &= text[_SECONDS] == ord(".")

    def two(at: int) -> Bytes:
        pair: Bytes = digit[at] * np.uint8(10) + digit[at + 1]
        return pair

    month, day, hour, minute, second = two(5), two(8), two(11), two(14), two(17)
    valid &= (month - np.uint8(1) <= 11) & (hour <= 23) & (minute <= 59) & (second <= 59)
    at_month = (two(0).astype(np.int32) * 100 + two(2)) * 12 + (month.astype(np.int32) - 1)
    at_month[~valid] = 0
    valid &= day - np.uint8(1) < _MONTH_DAYS[at_month]
    days = _MONTH_START[at_month] + day.astype(np.int32)
    of_day = (hour.astype(np.int32) * 60 + minute) * 60 + second
    micros = (days.astype(np.int64) - 1) * 86_400 + of_day
    micros *= 1_000_000
    if fraction:
        below = np.zeros(text.shape[1], np.int32)
        for at in range(_SECONDS + 1, min(size, _SECONDS + 7)):
            below = below * 10 + digit[at]
        micros += below * np.int32(10 ** max(0, 7 - fraction))
    return micros, valid
