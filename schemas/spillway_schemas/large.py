"""Large JSON objects, read a part at a time: what is skipped costs no memory.

A parser turns every value into something: `1,` (2 bytes) takes 34 bytes even of pydantic's own
tree. Messages beyond `LARGE` are therefore cut at commas that stand outside strings. Where a comma
is cut, the brackets that are open there are closed behind the first part and opened again before
the second, each time with a `0` on the far side of the comma:

    {"a":1,"x":[{},{}]}  ->  {"a":1,"x":[{},0]}  and  {"":[0,{}]}

The whole is JSON, and nested no deeper than allowed, just when all parts are; and a name at the top
level stands at the top level of its part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

LARGE = 1 << 20
"""Bytes of a message that is still parsed whole."""
PART = 1 << 18
"""Bytes of a part, unless one string is longer."""
DEEPEST = 200
"""Nesting that the parser allows."""

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_CLOSES = {ord("{"): b"}", ord("["): b"]"}


def parts(value: bytes) -> Iterator[tuple[int, bytes]]:
    """JSON texts that are all valid if and only if `value` is, each with where it begins there."""
    begin, prefix, open_ = 0, b"", b""
    while (cut := _cut(value, begin)) is not None:
        end, brackets = cut
        open_ = _still_open(open_, brackets)
        if not 0 < len(open_) <= DEEPEST:  # wrong in any case: the parser will say where
            break
        yield begin, b"".join((prefix, memoryview(value)[begin:end], _suffix(open_)))
        begin, prefix = end, _prefix(open_)
    yield begin, b"".join((prefix, memoryview(value)[begin:]))


def _cut(value: bytes, begin: int) -> tuple[int, Bytes] | None:
    """The place of a comma outside strings about PART bytes behind `begin`, which is outside,
    too, and the brackets between them; None when no comma follows."""
    at = begin + (begin > 0)  # behind the comma of the last cut
    seen: list[Bytes] = []
    while len(value) - begin > PART and at < len(value):
        window = np.frombuffer(value, np.uint8, min(PART, len(value) - at), at)
        quotes = _quotes(window)
        commas = _outside(np.flatnonzero(window == ord(",")), quotes)
        # `[` and `{` differ in one bit only, as `]` and `}` do.
        folded = window | 0x20
        brackets = (folded == ord("{")) | (folded == ord("}"))
        at_brackets = _outside(np.flatnonzero(brackets), quotes)
        if len(commas):
            last = int(commas[-1])
            seen.append(window[at_brackets[at_brackets < last]])
            return at + last, np.concatenate(seen)
        seen.append(window[at_brackets])
        if len(quotes) & 1:
            string = _STRING.match(value, at + int(quotes[-1]))
            if string is None:
                return None
            at = string.end()
        else:
            at += len(window)
    return None


def _outside(places: Places, quotes: Places) -> Places:
    """Those of the places that are not in strings."""
    outside: Places = places[np.searchsorted(quotes, places) & 1 == 0]
    return outside


def _quotes(window: Bytes) -> Places:
    """Where strings begin and end, in turns, if the window begins outside of strings."""
    quote = window == ord('"')
    backslashes = np.flatnonzero(window == ord("\\"))
    if len(backslashes):
        run = np.flatnonzero(np.diff(backslashes, prepend=-2) != 1)
        place = np.arange(len(backslashes)) - np.repeat(run, np.diff(run, append=len(backslashes)))
        escaped = backslashes[place & 1 == 0] + 1
        quote[escaped[escaped < len(window)]] = False
    return np.flatnonzero(quote)


def _still_open(open_: bytes, brackets: Bytes) -> bytes:
    """The brackets that are open after `brackets`, when `open_` were before."""
    opens = brackets & 2 != 0
    depth = np.cumsum(np.where(opens, 1, -1))
    lowest = np.minimum.accumulate(depth[::-1])[::-1]
    kept = len(open_) + min(0, int(lowest[0])) if len(depth) else len(open_)
    if kept < 0:
        return b""
    return open_[:kept] + bytes(brackets[opens & (lowest >= depth)])


def _suffix(open_: bytes) -> bytes:
    inner = b',"":0}' if open_[-1:] == b"{" else b",0]"
    return inner + b"".join(_CLOSES[bracket] for bracket in reversed(open_[:-1]))


def _prefix(open_: bytes) -> bytes:
    outer = open_[:-1].replace(b"{", b'{"":')
    return outer + (b'{"":0' if open_[-1:] == b"{" else b"[0")
