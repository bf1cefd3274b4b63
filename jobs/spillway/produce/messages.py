"""Message texts, whole columns at a time: JSON of the shipped contracts, and ways to break it.

`messages` writes what `schemas/spillway_schemas/messages.py` accepts. `broken` takes such a message
and makes one that the contract refuses, of a named kind; it works row by row, since malformed rows
are few.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spillway_schemas.scenario import MalformedKind

I64 = npt.NDArray[np.int64]

_REVIEWERS = 5_000
_PHRASES = (
    "steady hands, fair price",
    "too dear for what it earns",
    "bought more on the dip",
    "the guidance was thin",
    "holding for the dividend",
    "insiders are selling",
    "great quarter, wait for the call",
    "not for the faint of heart",
)
_THREE_DIGITS = pa.array([f"{n:03d}" for n in range(1000)])
_TWO_DIGITS = pa.array([f"{n:02d}" for n in range(100)])


def messages(kind: str, symbols: pa.Array, ts_us: I64, rng: Any) -> pa.Array:
    """JSON of one kind (`stock`, `volume`, `review`): Arrow binary (n,).

    `symbols`: Arrow strings (n,), without characters that JSON escapes. `ts_us`: microseconds
    since 1970, int64 (n,). `rng`: a numpy generator for everything else.
    """
    head = ['{"symbol":"', symbols, '","ts":"', rfc3339(ts_us)]
    return pc.cast(_join(*head, *_KINDS[kind](len(ts_us), rng)), pa.binary())


def _stock(n: int, rng: Any) -> list[Any]:
    cents = np.rint(np.exp(rng.normal(4.2, 0.8, n)) * 100).astype(np.int64) + 1
    price = _join(_text(cents // 100), ".", _TWO_DIGITS.take(pa.array(cents % 100)))
    # A third of the feeds name the currency, as it is optional.
    tails = pa.array(["}", ',"currency":"USD"}'])
    return ['","price":', price, tails.take(pa.array((rng.random(n) < 0.33).astype(np.int8)))]


def _volume(n: int, rng: Any) -> list[Any]:
    lots = np.ceil(np.exp(rng.normal(1.0, 1.2, n))).astype(np.int64) * 100
    return ['","shares":', _text(lots), "}"]


def _review(n: int, rng: Any) -> list[Any]:
    phrases = pa.array(list(_PHRASES)).take(pa.array(rng.integers(0, len(_PHRASES), n)))
    return [
        '","reviewer":"r',
        _text(rng.integers(1, _REVIEWERS + 1, n)),
        '","rating":',
        _text(rng.integers(1, 6, n)),
        ',"text":"',
        phrases,
        '"}',
    ]


_KINDS: dict[str, Callable[[int, Any], list[Any]]] = {
    "stock": _stock,
    "volume": _volume,
    "review": _review,
}


def rfc3339(ts_us: I64) -> pa.Array:
    """Microseconds since 1970 as `2026-01-05T14:30:00.123456Z`: Arrow strings (n,)."""
    seconds, micros = np.divmod(ts_us, 1_000_000)
    distinct, position = np.unique(seconds, return_inverse=True)
    days = np.datetime_as_string(distinct.astype("datetime64[s]"), unit="s")
    return _join(
        pa.array(days.astype(object), pa.string()).take(pa.array(position)),
        ".",
        _THREE_DIGITS.take(pa.array(micros // 1000)),
        _THREE_DIGITS.take(pa.array(micros % 1000)),
        "Z",
    )


def _text(numbers: I64) -> pa.Array:
    return pc.cast(pa.array(numbers), pa.string())


def _join(*parts: Any) -> pa.Array:
    """Texts side by side, row by row; a plain string stands in every row."""
    return pc.binary_join_element_wise(*parts, "")


# ------------------------------------------------------------------------------------ malformed


def broken(kind: MalformedKind, message: bytes) -> bytes | None:
    """A message that its contract refuses, made of one that it accepts; None is a tombstone."""
    return _BREAKS[kind](message)


def _changed(message: bytes, **fields: Any) -> bytes:
    return json.dumps(json.loads(message) | fields, separators=(",", ":")).encode()


def _number_field(message: bytes) -> str:
    fields = json.loads(message)
    return next(name for name in ("price", "shares", "rating") if name in fields)


def _without_ts(message: bytes) -> bytes:
    fields = json.loads(message)
    del fields["ts"]
    return json.dumps(fields, separators=(",", ":")).encode()


_BREAKS: dict[MalformedKind, Callable[[bytes], bytes | None]] = {
    "not-json": lambda m: m[: len(m) // 2],
    "empty": lambda _: b"",
    "tombstone": lambda _: None,
    "wrong-type": lambda m: _changed(m, **{_number_field(m): "many"}),
    "missing-field": _without_ts,
    "null-key": lambda m: _changed(m, symbol=None),
    "not-finite": lambda m: _changed(m, **{_number_field(m): float("nan")}),
    # Beyond a double as well as beyond 64 bits.
    "too-big": lambda m: _changed(m, **{_number_field(m): 10**400}),
    "bad-utf8": lambda m: m.replace(b'"symbol":"', b'"symbol":"\xff\xfe', 1),
    "no-offset": lambda m: _changed(m, ts=json.loads(m)["ts"].rstrip("Z")),
}
