"""Numbers, `true`, `false` and `null` of JSON, read in many values at the same time.

A small automaton, made from the grammar below, takes one byte of every scalar a step. It stops at
the byte that ends a scalar. What it does not know is OTHER, and that is no verdict: NaN, numbers
of many digits and large exponents are left to the contract.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

OTHER, INT, FLOAT, TRUE, FALSE, NULL = range(6)
"""What a scalar is. An INT fits 64 bits, a FLOAT is finite."""

LONGEST_SCALAR = 24
"""Bytes of a scalar that is still read."""
DIGITS = 18
"""Digits of an INT: none of them overflows 64 bits."""

_ENDS = b",]} "
_ONE_TO_NINE, _ZERO_TO_NINE = b"123456789", b"0123456789"
_GRAMMAR: list[tuple[str, bytes, str]] = [
    ("begin", b"-", "minus"),
    *((state, b"0", "zero") for state in ("begin", "minus")),
    *((state, _ONE_TO_NINE, "whole") for state in ("begin", "minus")),
    ("whole", _ZERO_TO_NINE, "whole"),
    *((state, b".", "point") for state in ("zero", "whole")),
    *((state, _ZERO_TO_NINE, "fraction") for state in ("point", "fraction")),
    *((state, b"eE", "e") for state in ("zero", "whole", "fraction")),
    ("e", b"+-", "sign"),
    *((state, _ZERO_TO_NINE, "exponent 1") for state in ("e", "sign")),
    # No third digit: with at most LONGEST_SCALAR bytes no double overflows.
    ("exponent 1", _ZERO_TO_NINE, "exponent 2"),
    *(("begin" if i == 0 else word[:i], word[i : i + 1].encode(), word[: i + 1])
      for word in ("true", "false", "null") for i in range(len(word))),
]  # fmt: skip
"""A state, the bytes that may come, the state that follows."""
_MEANING = {"zero": INT, "whole": INT, "fraction": FLOAT, "exponent 1": FLOAT, "exponent 2": FLOAT}
_MEANING |= {"true": TRUE, "false": FALSE, "null": NULL}


def _automaton() -> npt.NDArray[np.int64]:
    """(256 * state + byte) -> 256 * next state. The states 0 to 5 are `OTHER` to `NULL`: ended."""
    states = [name for name, _, _ in _GRAMMAR] + [name for _, _, name in _GRAMMAR]
    number = {name: NULL + 1 + i for i, name in enumerate(dict.fromkeys(states))}
    assert number["begin"] == _BEGIN
    table = np.zeros((NULL + 1 + len(number), 256), np.int64)
    for ended in range(NULL + 1):
        table[ended] = 256 * ended
    for state, over, to in _GRAMMAR:
        table[number[state], list(over)] = 256 * number[to]
    for state, kind in _MEANING.items():
        table[number[state], list(_ENDS)] = 256 * kind
    return table.reshape(-1)


_BEGIN = NULL + 1
_NEXT = _automaton()


def read_scalars(data: Codes, begins: Ints) -> tuple[Codes, Ints]:
    """What scalar begins at each address of `data`, and the address behind it (n,).

    The address means nothing where the scalar is OTHER. `data` goes on for LONGEST_SCALAR bytes
    or more behind each address.
    """
    state = np.full(len(begins), 256 * _BEGIN, np.int64)
    at, ends = begins.copy(), begins.copy()
    for _ in range(LONGEST_SCALAR + 1):
        state += data.take(at, mode="clip")
        state = _NEXT.take(state, mode="clip")
        going = state >= 256 * _BEGIN
        if not going.any():
            break
        ends += going
        at += 1
    kinds = (state >> 8).astype(np.uint8)
    kinds[kinds >= _BEGIN] = OTHER
    if int((ends - begins).max(initial=0)) > DIGITS:
        digits = ends - begins - (data.take(begins, mode="clip") == ord("-"))
        kinds[(kinds == INT) & (digits > DIGITS)] = OTHER
    return kinds, ends
