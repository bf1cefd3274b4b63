"""Message texts, whole columns at a time: JSON of the shipped contracts, and ways to break it.

`messages` writes what `schemas/spillway_schemas/messages.py` accepts, `own_messages` what a
scenario's `fields` say. `broken` takes such a message and makes one that the contract refuses, of a
named kind; it works row by row, since malformed rows are few.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spillway_schemas.scenario import MADE_UP, MalformedKind

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


def own_messages(
    fields: Mapping[str, str], keys: Mapping[str, pa.Array], ts_us: I64, rng: Any
) -> pa.Array:
    """JSON of a stream of fields: Arrow binary (n,).

    `fields`: what each field is (`spillway_schemas.scenario`). `keys`: for those of a domain the
    values, Arrow strings without characters that JSON escapes or int64, (n,). `ts_us` and `rng` as
    of `messages`.
    """
    n = len(ts_us)
    parts: list[Any] = []
    for name, text in fields.items():
        parts.append(f'{"," if parts else "{"}"{name}":')
        if text in keys:
            parts += _quoted(keys[text]) if pa.types.is_string(keys[text].type) else [keys[text]]
        elif text == "time":
            parts += _quoted(rfc3339(ts_us))
        elif text == "price":
            parts.append(_price(n, rng))
        elif text == "size":
            parts.append(_size(n, rng))
        else:
            parts += _quoted(_words(n, rng))
    texts = (pc.cast(each, pa.string()) if isinstance(each, pa.Array) else each for each in parts)
    return pc.cast(_join(*texts, "}"), pa.binary())


def _quoted(column: pa.Array) -> list[Any]:
    return ['"', column, '"']


def _price(n: int, rng: Any) -> pa.Array:
    cents = np.rint(np.exp(rng.normal(4.2, 0.8, n)) * 100).astype(np.int64) + 1
    return _join(_text(cents // 100), ".", _TWO_DIGITS.take(pa.array(cents % 100)))


def _size(n: int, rng: Any) -> pa.Array:
    return _text(np.ceil(np.exp(rng.normal(1.0, 1.2, n))).astype(np.int64) * 100)


def _words(n: int, rng: Any) -> pa.Array:
    return pa.array(list(_PHRASES)).take(pa.array(rng.integers(0, len(_PHRASES), n)))


def _stock(n: int, rng: Any) -> list[Any]:
    price = _price(n, rng)
    # A third of the feeds name the currency, as it is optional.
    tails = pa.array(["}", ',"currency":"USD"}'])
    return ['","price":', price, tails.take(pa.array((rng.random(n) < 0.33).astype(np.int8)))]


def _volume(n: int, rng: Any) -> list[Any]:
    return ['","shares":', _size(n, rng), "}"]


def _review(n: int, rng: Any) -> list[Any]:
    phrases = _words(n, rng)
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


@dataclass(frozen=True)
class Places:
    """Which fields of a stream's messages the ways to break them are about."""

    key: str
    number: str | None
    time: str | None


def places_of(fields: Mapping[str, str]) -> Places:
    """Of a stream of fields: its first key, price or size, and time."""

    def first(*texts: str) -> str | None:
        return next((name for name, text in fields.items() if text in texts), None)

    key = next(name for name, text in fields.items() if text not in MADE_UP)
    return Places(key, first("price", "size"), first("time"))


def broken(kind: MalformedKind, message: bytes, places: Places | None = None) -> bytes | None:
    """A message that its contract refuses, made of one that it accepts; None is a tombstone.

    `places`: of a stream of fields; without them the message is of a shipped contract.
    """
    return _BREAKS[kind](message, places or _shipped(message))


def _shipped(message: bytes) -> Places:
    number = next((n for n in ("price", "shares", "rating") if f'"{n}":'.encode() in message), None)
    return Places("symbol", number, "ts")


def _changed(message: bytes, field: str | None, value: Any) -> bytes:
    assert field is not None, "the scenario was checked"
    return json.dumps(json.loads(message) | {field: value}, separators=(",", ":")).encode()


def _without(message: bytes, field: str) -> bytes:
    fields = json.loads(message)
    del fields[field]
    return json.dumps(fields, separators=(",", ":")).encode()


def _without_offset(message: bytes, field: str | None) -> bytes:
    return _changed(message, field, json.loads(message)[field].rstrip("Z"))


def _not_text(message: bytes, field: str) -> bytes:
    """Bytes that are no UTF-8, in the key's value where it is a text, else in the first name."""
    begins = f'"{field}":"'.encode()
    if begins not in message:
        begins = b'{"'
    return message.replace(begins, begins + b"\xff\xfe", 1)


_BREAKS: dict[MalformedKind, Callable[[bytes, Places], bytes | None]] = {
    "not-json": lambda m, _: m[: len(m) // 2],
    "empty": lambda _, __: b"",
    "tombstone": lambda _, __: None,
    "wrong-type": lambda m, at: _changed(m, at.number, "many"),
    "missing-field": lambda m, at: _without(m, at.time or at.key),
    "null-key": lambda m, at: _changed(m, at.key, None),
    "not-finite": lambda m, at: _changed(m, at.number, float("nan")),
    # Beyond a double as well as beyond 64 bits.
    "too-big": lambda m, at: _changed(m, at.number, 10**400),
    "bad-utf8": lambda m, at: _not_text(m, at.key),
    "no-offset": lambda m, at: _without_offset(m, at.time),
}
