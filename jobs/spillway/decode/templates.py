r"""JSON objects of one form, read together.

Messages of a topic look alike: the same names in the same order, only texts and numbers differ.
A *template* is one value with its texts and scalars taken out: literal bytes with holes between.
Another value that has the same bytes in the same order, a string in each hole for strings and a
scalar in each hole for scalars, is JSON because the template is, and has its fields in the same
holes. For JSON's grammar does not look into strings and scalars. So

* a template is made from a value that the contract's own parser took;
* a value matches when all of its bytes are accounted for: literals byte for byte, scalars by
  `scalars`, strings by what `_Piece` checked for all strings (UTF-8, no control character,
  escapes that JSON has, no surrogates), each ending at the first quote that is not escaped.

What is read from a value that matches follows from its own bytes. Which templates were tried
depends on its neighbours, but a value that matches none is left out, not refused: it is read one
by one, which gives the same. No value is joined with another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic_core import from_json

from spillway.decode.layout import Layout
from spillway.decode.scalars import (
    FALSE,
    FLOAT,
    INT,
    LONGEST_SCALAR,
    NULL,
    OTHER,
    TRUE,
    read_scalars,
)
from spillway_schemas.messages import FieldRule

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

MOST_TEMPLATES = 12
"""Templates that are tried for a piece."""
WORTH = 8
"""No further template is tried once one has matched fewer than 1 in WORTH of the values that it was
tried on: a try costs about a tenth of reading one by one."""
LONGEST = 16 << 10
"""Bytes of a value that a template is made from."""
LONGEST_LITERAL = 4_096
"""Bytes of a template, without its holes, and MOST_HOLES of its holes: more is not worth it."""
MOST_HOLES = 64
MOST_IN_LISTS = 8
"""Scalars without a name of their own: each costs a pass over all values."""

_BEHIND = LONGEST_LITERAL + (MOST_HOLES + 1) * (LONGEST_SCALAR + 1) + 8
"""Zeros behind the values: a value that does not match may be followed so far."""

QUOTE, BACKSLASH = b'"\\'


@dataclass(frozen=True)
class Hole:
    """Where a value stands that differs from message to message."""

    quotes: int
    """Quotes before it, its own among them."""
    is_string: bool
    behind: int
    """Where it begins behind the last of these quotes; 0: another hole is between."""


@dataclass(frozen=True)
class Template:
    """`literals[0] holes[0] literals[1] ... literals[-1]`."""

    literals: tuple[bytes, ...]
    holes: tuple[Hole, ...]
    quotes: int
    """Quotes in all, without those that are escaped."""
    fields: dict[str, int | None]
    """For each name at the top level the hole of its value, None for an object or array. The
    contract takes the last of a repeated name, and so does this."""


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]|[^\s{}\[\]:,"]+', re.DOTALL)
_NAME = re.compile(rb"\s*:")


def template_of(value: bytes) -> Template | None:
    """The template of a JSON object; None for anything else, and when it would be too long."""
    if len(value) > LONGEST:
        return None
    try:
        if type(from_json(value)) is not dict:
            return None
    except ValueError:
        return None
    literals: list[bytes] = []
    holes: list[Hole] = []
    fields: dict[str, int | None] = {}
    begin = depth = quotes = last = unnamed = 0
    name: str | None = None
    for token in _TOKEN.finditer(value):
        text, hole = token.group(), None
        if text in b"]}":
            depth -= 1
            continue
        if text[0] == QUOTE:
            quotes, last = quotes + 2, token.end()
            if _NAME.match(value, token.end()):
                name = from_json(text) if depth == 1 else None
                continue
            hole = Hole(quotes - 1, True, 1)
            literals.append(value[begin : token.start() + 1])
            begin = token.end() - 1
        elif text not in b"{[":
            hole = Hole(quotes, False, 1 + token.start() - last if last > begin else 0)
            literals.append(value[begin : token.start()])
            begin = token.end()
        if name is not None:
            fields[name] = None if hole is None else len(holes)
            name = None
        if hole is None:
            depth += 1
        else:
            holes.append(hole)
        unnamed += hole is not None and not hole.behind
        if len(holes) > MOST_HOLES or unnamed > MOST_IN_LISTS:
            return None
    literals.append(value[begin:])
    if sum(map(len, literals)) > LONGEST_LITERAL:
        return None
    return Template(tuple(literals), tuple(holes), quotes, fields)


RAW_TYPES: dict[str, Any] = {
    "string": pa.string(),
    "int": pa.int64(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "timestamp": pa.string(),
}
_SCALARS = {"string": (), "timestamp": (), "int": (INT,), "double": (INT, FLOAT)}
_SCALARS |= {"bool": (TRUE, FALSE)}
_ALLOWED = {kind: np.isin(np.arange(NULL + 1), (*which, NULL)) for kind, which in _SCALARS.items()}


def read_alike(
    rules: Sequence[FieldRule], values: Any, most: int
) -> tuple[list[tuple[Ints, Any]], Ints]:
    """Read what looks alike in a piece: (positions, raw columns) for each form, and the rest.

    `values`: pyarrow binary or large_binary array, nulls included, of no more than `most` bytes
    or a single larger one, which is left. It needs up to about 60 times the bytes. Positions are
    int64 (n,), ascending.
    """
    layout = Layout.of(values)
    if layout.data.size > most:
        return [], np.arange(len(values))
    piece = _Piece(layout)
    done: list[tuple[Ints, Any]] = []
    open_ = np.flatnonzero(piece.fit)
    taken = np.zeros(len(values), np.bool_)
    for _ in range(MOST_TEMPLATES):
        if not len(open_):
            break
        first = int(open_[0])
        tried = len(open_)
        template = template_of(values[first].as_py())
        found = np.zeros(0, np.int64)
        if template is not None:
            found, columns = piece.match(template, rules, open_)
            if len(found):
                done.append((found, columns))
                taken[found] = True
                open_ = open_[~taken[open_]]
        if len(open_) and open_[0] == first:
            open_ = open_[1:]
        if len(found) * WORTH < tried:
            break
    return done, np.flatnonzero(~taken)


Found = tuple[Ints, Ints, Codes | None]
"""What is in a hole, one for each value: where it begins and ends, and what scalar it is."""


class _Piece:
    """Values whose strings have been found."""

    def __init__(self, layout: Layout) -> None:
        size = layout.data.size
        self._data = data = np.empty(size + _BEHIND, np.uint8)
        data[:size] = layout.data
        data[size:] = 0
        self._words: Any = np.ndarray((len(data) - 7,), np.dtype("<u8"), data, strides=(1,))
        self._starts, self._ends = layout.starts, layout.ends
        self.fit = fit = layout.valid & (layout.ends > layout.starts)
        """Which values begin with `{`, end with `}`, and have only strings that JSON has."""
        fit &= data[layout.starts] == ord("{")
        fit &= data[layout.ends - 1] == ord("}")
        text = data[:size]
        quote = text == QUOTE
        self._escapes = np.zeros(0, np.int64)
        if size:
            if int(text.min()) < 0x20:
                self._leave_out(np.flatnonzero(text < 0x20))
            if int(text.max()) >= 0x80 and not _is_utf8(text):
                self._leave_out(np.flatnonzero(text >= 0x80))
            if (backslash := text == BACKSLASH).any():
                self._escapes, wrong = _escapes(data, np.flatnonzero(backslash))
                self._leave_out(wrong)
                quote[self._escapes[data[self._escapes + 1] == QUOTE] + 1] = False
        self._quotes = np.flatnonzero(quote)
        self._first = np.append(np.searchsorted(self._quotes, layout.starts), len(self._quotes))

    def _leave_out(self, at: Ints) -> None:
        """The values that these addresses lie in."""
        self.fit[np.searchsorted(self._starts, at, side="right") - 1] = False

    def match(self, template: Template, rules: Sequence[FieldRule], rows: Ints) -> tuple[Ints, Any]:
        """Which of `rows` match and have kinds that the rules allow, and their raw columns."""
        rows = rows[(self._first[rows + 1] - self._first[rows]) == template.quotes]
        first, at = self._first[rows], self._starts[rows]
        good = np.ones(len(rows), np.bool_)
        found: list[Found] = []
        scalars = self._scalars(template, first)
        for place, hole in enumerate(template.holes):
            good &= self._is(template.literals[place], at)
            at = at + len(template.literals[place])
            if hole.is_string:
                good &= self._quotes.take(first + (hole.quotes - 1), mode="clip") == at - 1
                end = self._quotes.take(first + hole.quotes, mode="clip")
                found.append((at, end, None))
            else:
                if place in scalars:
                    begin, end, kinds = scalars[place]
                    good &= begin == at
                else:
                    kinds, end = read_scalars(self._data, at)
                good &= kinds != OTHER
                found.append((at, end, kinds))
            at = end
        good &= self._is(template.literals[-1], at)
        good &= at + len(template.literals[-1]) == self._ends[rows]
        wanted: list[Found | None] = []
        for rule in rules:
            where = template.fields.get(rule.name, -1)
            if where == -1:
                wanted.append(None)
                continue
            each = None if where is None else found[where]
            if each is None or (each[2] is None and rule.kind not in ("string", "timestamp")):
                return rows[:0], None
            if each[2] is not None:
                good &= _ALLOWED[rule.kind].take(each[2])
            wanted.append(each)
        if not good.all():
            rows = rows[good]
            wanted = [each and _only(each, good) for each in wanted]
        if not len(rows):
            return rows, None
        columns = [
            self._column(rule, each, len(rows)) for rule, each in zip(rules, wanted, strict=True)
        ]
        return rows, pa.table(columns, names=[rule.name for rule in rules])

    def _scalars(self, template: Template, first: Ints) -> dict[int, tuple[Ints, Ints, Codes]]:
        """The scalars that a name stands before, read in one go: where each should begin, where
        it ends, and what it is."""
        places = [i for i, h in enumerate(template.holes) if not h.is_string and h.behind]
        if not places:
            return {}
        quotes = np.array([template.holes[i].quotes - 1 for i in places])[:, None]
        behind = np.array([template.holes[i].behind for i in places])[:, None]
        begins = self._quotes.take(first + quotes, mode="clip") + behind
        kinds, ends = read_scalars(self._data, begins.reshape(-1))
        shape = begins.shape
        every = zip(begins, ends.reshape(shape), kinds.reshape(shape), strict=True)
        return dict(zip(places, every, strict=True))

    def _is(self, literal: bytes, at: Ints) -> Mask:
        """Whether the literal stands at each address; addresses may be anything."""
        if len(literal) < 8:
            word = self._words[at]
            word &= np.uint64((1 << 8 * len(literal)) - 1)
            return _equal(word, literal)
        begins = [*range(0, len(literal) - 8, 8), len(literal) - 8]
        same = _equal(self._words[at + begins[-1]], literal[-8:])
        for begin in begins[:-1]:
            same &= _equal(self._words[at + begin if begin else at], literal[begin : begin + 8])
        return same

    def _column(self, rule: FieldRule, found: Found | None, n: int) -> Any:
        type_ = RAW_TYPES[rule.kind]
        if found is None:
            return pa.nulls(n, type_)
        begins, ends, kinds = found
        if rule.kind == "bool":
            return pa.array(kinds == TRUE, mask=kinds == NULL)
        null = None if kinds is None else kinds == NULL
        offsets = np.zeros(2 * n + 1, np.int32)
        offsets[1::2], offsets[2::2] = begins, ends
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self._data)]
        parts = pa.Array.from_buffers(pa.string(), 2 * n, buffers)
        which = pa.array(np.arange(1, 2 * n + 1, 2, dtype=np.int32), mask=null)
        texts = parts.take(which)
        if kinds is not None:
            return texts.cast(type_)
        if len(self._escapes):
            escaped = np.searchsorted(self._escapes, ends) != np.searchsorted(self._escapes, begins)
            if escaped.any():
                raw = texts.filter(pa.array(escaped)).to_pylist()
                plain = from_json('["' + '","'.join(raw) + '"]')
                texts = pc.replace_with_mask(texts, pa.array(escaped), pa.array(plain, type_))
        return texts


def _only(found: Found, keep: Mask) -> Found:
    begins, ends, kinds = found
    return begins[keep], ends[keep], None if kinds is None else kinds[keep]


def _equal(words: npt.NDArray[np.uint64], literal: bytes) -> Mask:
    same: Mask = words == np.uint64(int.from_bytes(literal, "little"))
    return same


def _is_utf8(text: Codes) -> bool:
    """Whether values that begin and end in ASCII are all UTF-8: then so is all of it, and back."""
    try:
        ends = pa.py_buffer(np.array([0, text.size], np.int32))
        whole = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(text)])
        whole.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


_ESCAPED = np.zeros(256, np.bool_)
_ESCAPED[list(b'"\\/bfnrtu')] = True
_HEX = np.full(256, 16, np.uint8)
for _digit in range(16):
    _HEX[ord(f"{_digit:x}")] = _HEX[ord(f"{_digit:X}")] = _digit


def _escapes(data: Codes, backslashes: Ints) -> tuple[Ints, Ints]:
    r"""Backslashes that escape the byte after them, and those of them that JSON does not know.

    In a run of backslashes the first, third and so on escape. `\u` with a surrogate is said to be
    unknown: pairs are left to the contract.
    """
    run = np.flatnonzero(np.diff(backslashes, prepend=-2) != 1)
    place = np.arange(len(backslashes)) - np.repeat(run, np.diff(run, append=len(backslashes)))
    escapes = backslashes[place & 1 == 0]
    escaped = data[escapes + 1]
    right = _ESCAPED[escaped]
    unicode = escapes[escaped == ord("u")]
    digits = _HEX[data[unicode[:, None] + np.arange(2, 6)]]
    surrogate = (digits[:, 0] == 0xD) & (digits[:, 1] >= 8)
    right[escaped == ord("u")] = (digits.max(axis=1, initial=0) < 16) & ~surrogate
    return escapes, escapes[~right]
