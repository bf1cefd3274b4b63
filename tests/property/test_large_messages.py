"""A message that is read in parts gets the verdict of one that is parsed whole."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spillway_schemas import large
from spillway_schemas.messages import Message, Rejected, contract, read, rule
from tests.lanes import lanes
from tests.property.json_texts import contract_named, value_texts

NAMES = ("every", "stock", "volume")


def verdict(model: type[Message], value: bytes) -> str:
    try:
        return repr(read(model, value))
    except Rejected as error:
        reason = str(error)
        return "not JSON" if reason.startswith("not JSON: ") else reason


def in_parts(model: type[Message], value: bytes, size: int) -> str:
    with patch.multiple(large, LARGE=0, PART=size):
        return verdict(model, value)


@lanes(25, 150)
@pytest.mark.parametrize("name", NAMES)
def test_parts_and_whole_agree(name: str, examples: int) -> None:
    model = contract_named(name)

    @settings(max_examples=examples, deadline=None)
    @given(value_texts(name), st.integers(1, 40))
    @example(b'{"symbol":"A","x":[1,]}', 1)
    @example(b'{"symbol":"A","x":[,1]}', 1)
    @example(b'{"symbol":"A",}', 1)
    @example(b'{,"symbol":"A"}', 1)
    @example(b'{"symbol":"A","x":{"a":1,2]}', 1)
    @example(b'{"symbol":"A"},{"symbol":"B"}', 1)
    @example(b'[{"symbol":"A"},2,3]', 1)
    @example(b'{"symbol":"A","x":"a,\\"b,[","y":[{"a":[1,2],"b":{}},3,[]],"i":7}', 1)
    @example(b'{"symbol":["A","B"],"i":7}', 1)
    @example(b"[1,oops", 1)  # it is no object, and no JSON either
    @example(b"[1,2]", 1)
    @example(b'{"symbol":"A","ts":"2026-01-05T14:30:00Z","price":%s}' % (b"1" * 400), 1)
    @example(b'{"symbol":"A","ts":"2026-01-05T14:30:00Z","shares":%s}' % (b"1" * 5000), 1)
    @example(b'{"symbol":"A",\\",","i":7}', 1)
    def agreement(value: bytes, size: int) -> None:
        assert in_parts(model, value, size) == verdict(model, value)

    agreement()


@pytest.mark.parametrize("depth", range(195, 206))
@pytest.mark.parametrize("pair", [("[", "]"), ('{"a":', "}")], ids=["arrays", "objects"])
def test_parts_are_as_deep_as_the_whole(depth: int, pair: tuple[str, str]) -> None:
    inner = pair[0] * depth + "1,2" * (pair[0] == "[") + '{"b":1,"c":2}' * (pair[0] != "[")
    value = ('{"symbol":"A","x":' + inner + pair[1] * depth + ',"i":1}').encode()
    model = contract_named("every")
    assert in_parts(model, value, 1) == verdict(model, value)


def test_parts_are_small_whatever_is_in_them() -> None:
    for unit in (b"{},", b'{"a":"b,[{\\"",  "c":[1]},', b"[" * 90 + b"]" * 90 + b",", b"1,"):
        value = b'{"x":[' + unit * (3 * large.PART // len(unit)) + b'0],"y":1}'
        sizes = [len(part) for _, part in large.parts(value)]
        assert len(sizes) >= 3
        assert max(sizes) <= large.PART + 1_000


def test_a_large_message_is_refused_where_a_field_is_json() -> None:
    model = contract((rule("symbol", "string"), rule("j", "json?")))
    right = b'{"symbol":"A","j":[1],"x":"%s"}'
    assert verdict(model, right % (b"x" * (large.LARGE - len(right) + 2))) == repr(
        read(model, right % b"")
    )
    reason = f"larger than {large.LARGE} bytes, the most for a stream with a json field"
    assert verdict(model, right % (b"x" * (large.LARGE - len(right) + 3))) == reason
    assert f"`{reason}`" in Path("docs/messages.md").read_text()


def test_the_reason_says_where_a_large_message_is_broken() -> None:
    value = b'{"x":[' + b"1," * large.LARGE + b'oops],"y":1}'
    with pytest.raises(Rejected) as refused:
        read(contract_named("stock"), value)
    text, _, place = str(refused.value).partition(" behind byte ")
    assert text == "not JSON: expected value"
    assert 0 < value.index(b"oops") - int(place) <= large.PART + 1
