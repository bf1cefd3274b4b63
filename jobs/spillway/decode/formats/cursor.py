"""Many binary values read in step: a place in each, and the next number or bytes of all at once.

A value whose bytes do not allow a step is *out*: its place is its end, and what is read of it means
nothing. Nobody says here why: whoever reads it by itself does.
"""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spillway.decode.layout import Layout

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Where = Ints | slice
"""Positions of values; `ALL` is faster than all of them by number."""

ALL = slice(None)
LONGEST_VARINT = 10
_BEHIND = 32
"""Zeros behind the values: a step of one that is cut off reads them."""


class Cursor:
    """A place in each of n values."""

    def __init__(self, values: Any) -> None:
        """`values`: pyarrow binary or large_binary array."""
        layout = Layout.of(values)
        self.size = layout.data.size
        self.data = np.zeros(self.size + _BEHIND, np.uint8)
        self.data[: self.size] = layout.data
        self._words: Any = np.ndarray(
            (len(self.data) - 7,), np.dtype("<u8"), self.data, strides=(1,)
        )
        self._halves: Any = np.ndarray(
            (len(self.data) - 3,), np.dtype("<u4"), self.data, strides=(1,)
        )
        self.begin, self.end = layout.starts, layout.ends
        self.at = layout.starts.copy()
        self.fit = np.ones(layout.rows, np.bool_)
        """Which values are not out."""

    def within(self, begins: Ints, ends: Ints) -> Cursor:
        """A cursor of what lies between addresses of these values, (n,), in the same bytes."""
        found = copy.copy(self)
        found.begin, found.end, found.at = begins, ends, begins.copy()
        found.fit = np.ones(len(begins), np.bool_)
        return found

    def varint(self, where: Where = ALL) -> Numbers:
        """The next base-128 number of 64 bits, the least bits first."""
        at = self.at[where].copy()
        byte = self.data[at]
        number = (byte & 0x7F).astype(np.uint64)
        more = byte >= 0x80
        at += 1
        fine = np.ones(len(at), np.bool_)
        for shift in range(7, 7 * LONGEST_VARINT, 7):
            if not more.any():
                break
            rows = np.flatnonzero(more)
            byte = self.data[at[rows]]
            number[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            at[rows] += 1
            more[rows] = byte >= 0x80
            if shift == 63:
                fine[rows] = byte <= 1  # the 64th bit, and nothing behind
        self._go(where, at, fine)
        return number

    def zigzag(self, where: Where = ALL) -> Ints:
        """The next number with a sign."""
        number = self.varint(where)
        return ((number >> np.uint64(1)) ^ (np.uint64(0) - (number & np.uint64(1)))).view(np.int64)

    def take(self, sizes: Ints | int, where: Where = ALL) -> tuple[Ints, Ints]:
        """The next so many bytes: addresses where they begin and end."""
        begins = self.at[where].copy()
        fine = (sizes >= 0) & (sizes <= self.end[where] - begins)
        ends = np.where(fine, begins + sizes, begins)
        self._go(where, ends, fine)
        return begins, ends

    def byte(self, where: Where = ALL) -> npt.NDArray[np.uint8]:
        """The next byte."""
        begins, _ = self.take(1, where)
        found: npt.NDArray[np.uint8] = self.data[begins]
        return found

    def double(self, where: Where = ALL) -> npt.NDArray[np.float64]:
        """The next 8 bytes as a number."""
        begins, _ = self.take(8, where)
        found: npt.NDArray[np.float64] = self._words[begins].view(np.float64)
        return found

    def single(self, where: Where = ALL) -> npt.NDArray[np.float64]:
        """The next 4 bytes as a number."""
        begins, _ = self.take(4, where)
        return singles(self._halves[begins])

    def word(self, where: Where = ALL) -> Numbers:
        """The next 8 bytes, the least first."""
        begins, _ = self.take(8, where)
        found: Numbers = self._words[begins]
        return found

    def half(self, where: Where = ALL) -> Numbers:
        """The next 4 bytes, the least first."""
        begins, _ = self.take(4, where)
        found: Numbers = self._halves[begins].astype(np.uint64)
        return found

    def positions(self, where: Where) -> Ints:
        """`where` by number."""
        return np.arange(len(self.at))[where] if isinstance(where, slice) else where

    def leave_out(self, where: Where, fine: Mask) -> None:
        """Values of `where` that are not `fine` are out."""
        self._go(where, self.at[where], fine)

    def _go(self, where: Where, at: Ints, fine: Mask) -> None:
        end = self.end[where]
        fine = fine & (at <= end)
        if fine.all():
            self.at[where] = at
        else:
            self.at[where] = np.where(fine, at, end)
            self.fit[where] &= fine

    def texts(self, begins: Ints, ends: Ints, null: Mask | None) -> Any:
        """Bytes between addresses, ascending, as pyarrow strings (n,). Values that may be no UTF-8
        are out, and empty here."""
        if not self._has_wide:
            return self._parts(begins, ends, null, pa.string())
        found = self._parts(begins, ends, null, pa.binary())
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:
            odd = self.are_wide(begins, ends)
            self.leave_out(ALL, ~odd)
            return self._parts(begins, np.where(odd, begins, ends), null, pa.string())

    def are_wide(self, begins: Ints, ends: Ints) -> Mask:
        """Between which addresses a byte is that is no ASCII."""
        if not self._has_wide:
            return np.zeros(len(begins), np.bool_)
        found: Mask = self._wide[ends] != self._wide[begins]
        return found

    @cached_property
    def _has_wide(self) -> bool:
        return int(self.data.max()) >= 0x80

    @cached_property
    def _wide(self) -> Ints:
        return np.cumsum(np.append(0, self.data >= 0x80))

    def _parts(self, begins: Ints, ends: Ints, null: Mask | None, type_: Any) -> Any:
        n = len(begins)
        offsets = np.zeros(2 * n + 1, np.int32)
        offsets[1::2], offsets[2::2] = begins, ends
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        parts = pa.Array.from_buffers(type_, 2 * n, buffers)
        return parts.take(pa.array(np.arange(1, 2 * n + 1, 2, dtype=np.int32), mask=null))

    def decimals(
        self, begins: Ints, ends: Ints, null: Mask | None, precision: int, scale: int
    ) -> Any:
        """Whole numbers in two's complement, the greatest byte first, between addresses, as pyarrow
        decimal128(precision, scale) (n,). Values that do not fit are out, and null here."""
        size = ends - begins
        self.leave_out(ALL, size <= 16)
        negative = (self.data[begins] >= 0x80) & (size > 0)
        little = np.zeros((len(begins), 16), np.uint8)
        little[negative] = 0xFF
        for place in range(min(16, int(size.max(initial=0)))):
            rows = np.flatnonzero(size > place)
            little[rows, place] = self.data[ends[rows] - 1 - place]
        return self.fitting(little, null, precision, scale)

    def fitting(self, little: Any, null: Mask | None, precision: int, scale: int) -> Any:
        """Numbers of 16 bytes, the least first, as `decimals` gives them."""
        whole = pa.decimal128(38, scale)
        data = pa.py_buffer(np.ascontiguousarray(little))
        found = pa.Array.from_buffers(whole, len(little), [None, data])
        most = pa.scalar(10**precision - 1, pa.decimal128(38, 0)).as_py().scaleb(-scale)
        fits = pc.and_(
            pc.less_equal(found, pa.scalar(most, whole)),
            pc.greater_equal(found, pa.scalar(-most, whole)),
        ).to_numpy(zero_copy_only=False)
        if null is not None:
            fits = fits | null
        self.leave_out(ALL, fits)
        valid = fits if null is None else fits & ~null
        bits = pa.array(valid).buffers()[1]
        return pa.Array.from_buffers(pa.decimal128(precision, scale), len(little), [bits, data])


def singles(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.float64]:
    """The bits of numbers of 4 bytes as numbers."""
    # Of a signaling NaN numpy warns that it becomes a quiet one: a NaN it is all the same.
    with np.errstate(invalid="ignore"):
        return bits.view(np.float32).astype(np.float64)


def sixteen(numbers: Ints) -> Any:
    """int64 (n,) as whole numbers of 16 bytes, the least first: uint8 (n, 16)."""
    wide = np.empty((len(numbers), 2), np.dtype("<i8"))
    wide[:, 0], wide[:, 1] = numbers, numbers >> 63
    return wide.view(np.uint8)
