"""What becomes of a message follows from its bytes: alone, in any order, in any batch, and as the
contract says."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

import spillway.decode.parse
from spillway.decode import Decoded, StreamPlan, decode, templates
from spillway.decode.rules import columns_of
from spillway.decode.timestamps import parse_timestamps
from spillway.produce.messages import messages
from spillway_schemas.messages import SHIPPED, Rejected, micros_of, parse_timestamp, read
from tests.lanes import explored, lanes
from tests.property.json_texts import PLANS, times, value_texts

Verdict = tuple[str, ...]


def verdicts(plan: StreamPlan, values: list[bytes | None], **few: int) -> list[Verdict]:
    """What `decode` says of each value: the reason, or every column's text."""
    decoded = decode(plan, pa.array(values, pa.binary()), **few)
    return _each(decoded, len(values))


def _each(decoded: Decoded, n: int) -> list[Verdict]:
    found: dict[int, Verdict] = {}
    columns = [column.to_pylist() for column in decoded.rows.columns]
    for row, at in enumerate(decoded.kept.tolist()):
        found[at] = ("row", *(repr(column[row]) for column in columns))  # -0.0 is not 0.0 here
    for at, reason in zip(decoded.rejected.tolist(), decoded.reasons, strict=True):
        assert at not in found
        found[at] = ("rejected", reason)
    return [found[at] for at in range(n)]


def by_the_contract(plan: StreamPlan, value: bytes | None) -> Verdict:
    """What the contract says of one value, without a line of `spillway.decode`'s parsers."""
    try:
        message = read(plan.contract, value)
    except Rejected as error:
        return ("rejected", str(error))
    row = columns_of(plan.rules, [message])
    names = [rule.name for rule in plan.rules]
    for key, source in zip(plan.keys, plan.sources, strict=False):
        if not row[names.index(source)][0].is_valid:
            return ("rejected", f"{key.name}: the join key is null")
    assert plan.sources[len(plan.keys) :] == tuple(plan.payload.names)
    return ("row", *(repr(row[names.index(name)][0].as_py()) for name in plan.sources))


def check(plan: StreamPlan, batch: list[bytes | None], seed: int) -> None:
    """Alone, together, in another order, in other batches, beside its like."""
    rng = random.Random(seed)
    # Values with a small difference are what templates could take for one another.
    batch = [*batch, *(_changed(rng, value) for value in batch if value)]
    expected = [by_the_contract(plan, value) for value in batch]
    for value, verdict in zip(batch, expected, strict=True):
        assert verdicts(plan, [value], few_rows=0) == [verdict]
    order = list(range(len(batch)))
    for _ in range(2):
        assert verdicts(plan, [batch[i] for i in order], few_rows=0) == [expected[i] for i in order]
        cut = rng.randint(0, len(order))
        for some in (order[:cut], order[cut:]):
            given_ = verdicts(plan, [batch[i] for i in some], few_rows=rng.choice([0, 2, 32]))
            assert given_ == [expected[i] for i in some]
        # Beside many of its like a value is read by a template, if it can be.
        like = [i for i in order for _ in range(rng.randint(1, 3))]
        assert verdicts(plan, [batch[i] for i in like], few_rows=0) == [expected[i] for i in like]
        rng.shuffle(order)


def check_agreement(name: str, examples: int) -> None:
    plan = PLANS[name]

    @settings(max_examples=examples, deadline=None)
    @given(st.lists(st.one_of(value_texts(name), st.none()), max_size=6), st.integers(0, 99))
    @example([b'{"symbol":"A"}{"symbol":"B"}', b""], 0)
    @example([b'{"symbol":"}', b'{","symbol":"x"}'], 0)
    @example([b'{"symbol":"A"}{"symbol":"B"}{"symbol":"C"}\x00}', b'{"symbol":"D"}'], 0)
    @example([b'{"symbol":"A","x":1}', b'{"symbol":"A","x":-Inf}', b'{"symbol":"A","x":-NaN}'], 0)
    @example([b'{"symbol":"A","i":1}', b'{"symbol":"A","i":%s}' % (b"1" * 5_000)], 0)
    @example([b'{"symbol":"A","x":1}', b'{"symbol":"A","x":%s}' % (b"1" * 5_000)], 0)
    @example([b'{"symbol":"A"}', b'{"symbol":"\\"}', b'{"symbol":"\\\\"}', b'{"symbol":"\\q"}'], 0)
    @example([b'{"symbol":"A","x":"b"}', b'{"symbol":"A","x":"\\ud800"}'], 0)
    @example(
        [b'{"symbol":"A","x":"b"}', b'{"symbol":"A","x":"\xc3"}', b'{"symbol":"\xa9","x":""}'], 0
    )
    @example([b'{"symbol":"A","x":1}', b'{"symbol":"A","x":1,}', b'{"symbol":"A","x":1 }'], 0)
    @example([b'{"symbol":"A","x":"b"}', b'{"symbol":"A","x":"b","x":"c"}'], 0)
    @example([b'{"symbol":"A","b":true}', b'{"symbol":"A","b":null}', b'{"symbol":"A","b":1}'], 0)
    def agreement(batch: list[bytes | None], seed: int) -> None:
        with patch.multiple(templates, WORTH=10**9, MOST_TEMPLATES=99):
            check(plan, batch, seed)

    agreement()


@lanes(8, 40)
@pytest.mark.parametrize("name", sorted(PLANS))
def test_columns_and_contract_agree(name: str, examples: int) -> None:
    check_agreement(name, examples)


MILLION = 1_000_000


@pytest.mark.soak
def test_a_million_messages_agree() -> None:
    """Messages of the fuzz grammar, each broken and mixed anew, in batches of all sizes."""
    rng = random.Random(20260105)
    seeds = {name: _drawn(name, 1_500) for name in PLANS}
    done = 0
    while done < MILLION:
        name = rng.choice(sorted(PLANS))
        batch = [
            _changed(rng, rng.choice(seeds[name])) for _ in range(rng.choice([1, 33, 200, 2_000]))
        ]
        batch += [_changed(rng, value) for value in rng.choices(batch, k=len(batch) // 2)]
        rng.shuffle(batch)
        found = verdicts(PLANS[name], [*batch], few_rows=rng.choice([0, 32]))
        for value, verdict in zip(batch, found, strict=True):
            assert verdict == by_the_contract(PLANS[name], value), value
        done += len(batch)


def _drawn(name: str, number: int) -> list[bytes]:
    texts: list[bytes] = []

    @settings(max_examples=number, deadline=None, database=None)
    @given(value_texts(name))
    def draw(value: bytes) -> None:
        texts.append(value)

    draw()
    return texts


_TOKENS = [
    *(b"-Inf", b"Infinity", b"NaN", b"1e400", b"-0", b"01", b"1" * 5_000, b"\\ud800", b"\\u0041"),
    *(
        b'"',
        b"\\",
        b",",
        b":",
        b"{",
        b"}",
        b"[",
        b"]",
        b" ",
        b"\n",
        b"\x00",
        b"\x1f",
        b"\xc3",
        b"\xa9",
    ),
    *(
        b'"symbol":',
        b'"\\u0073ymbol":',
        b"null",
        b"true",
        b"7",
        b'"2026-01-05T14:30:00Z"',
        b"\xef\xbb\xbf",
    ),
]


def _changed(rng: random.Random, value: bytes) -> bytes:
    """Half of the time a value as it is, else with a token put in or in the place of some bytes."""
    for _ in range(rng.choice([0, 0, 1, 2])):
        at = rng.randint(0, len(value))
        value = value[:at] + rng.choice(_TOKENS) + value[at + rng.choice([0, 0, 1, 5]) :]
    return value


@explored(50, 300, st.lists(st.one_of(times, st.none()), max_size=6))
def test_times_agree(texts: list[str | None]) -> None:
    micros, valid = parse_timestamps(pa.array(texts, pa.string()))
    for text, number, held in zip(texts, micros.tolist(), valid.tolist(), strict=True):
        if held:
            assert number == micros_of(parse_timestamp(text))
        elif text is not None and len(text) <= 25:
            with pytest.raises(PydanticCustomError):
                parse_timestamp(text)


@explored(35, 200, st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 40))
def test_doubles_are_read_to_the_last_bit(number: float, more: int) -> None:
    for text in (f"{number:.{more}e}", repr(number)):
        value = b'{"symbol":"A","ts":"2026-01-05T14:30:00Z","price":%s}' % text.encode()
        expected = float(text) + 0.0
        (found,) = verdicts(PLANS["stock"], [value], few_rows=0)
        assert found == by_the_contract(PLANS["stock"], value)
        if expected not in (float("inf"), float("-inf")):
            assert str(expected) in found


def test_shipped_contracts_are_all_covered() -> None:
    assert SHIPPED.keys() <= PLANS.keys()


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_templates_read_all_that_is_produced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agreement above says nothing if all values take the contract's own parser."""
    taken = 0
    real = spillway.decode.parse.read_alike

    def spy(*arguments: Any) -> Any:
        nonlocal taken
        done, left = real(*arguments)
        taken += sum(len(rows) for rows, _ in done)
        return done, left

    monkeypatch.setattr(spillway.decode.parse, "read_alike", spy)
    n = 500
    symbols = pa.array([f"S{i % 70}" for i in range(n)], pa.string())
    times_us = 1_767_600_000_000_000 + np.arange(n, dtype=np.int64) * 1_001
    values = messages(name, symbols, times_us, np.random.default_rng(1)).to_pylist()
    expected = [by_the_contract(PLANS[name], value) for value in values]
    assert verdicts(PLANS[name], values) == expected
    assert taken == n
