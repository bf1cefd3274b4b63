"""Messages: what is meant to be valid is, what is meant to be malformed is refused, all of it."""

from __future__ import annotations

import json
import typing
from datetime import datetime

import numpy as np
import pyarrow as pa
import pytest

from spillway.produce.messages import broken, messages, own_messages, places_of, rfc3339
from spillway_schemas.messages import SHIPPED, Rejected, contract, read, rule
from spillway_schemas.scenario import MalformedKind

KINDS = typing.get_args(MalformedKind)


def made(kind: str, count: int = 300) -> list[bytes]:
    symbols = pa.array([f"S{n}" for n in range(count)])
    ts = np.arange(count) * 1_234_567 + 1_767_623_400_000_000
    return messages(kind, symbols, ts, np.random.default_rng(1)).to_pylist()


@pytest.mark.parametrize("kind", SHIPPED)
def test_valid_messages_are_accepted_by_their_contract(kind):
    texts = made(kind)
    rows = [read(SHIPPED[kind], text) for text in texts]
    assert [row.symbol for row in rows] == [f"S{n}" for n in range(300)]
    assert rows[1].ts.isoformat() == "2026-01-05T14:30:01.234567+00:00"
    assert len(set(texts)) == 300
    # Compact JSON, as `json` would write it (numbers may keep a trailing zero).
    assert all(b" :" not in text and json.loads(text) for text in texts)


@pytest.mark.parametrize("breakage", KINDS)
@pytest.mark.parametrize("kind", SHIPPED)
def test_malformed_messages_are_refused_by_their_contract(kind, breakage):
    for text in made(kind, 20):
        bad = broken(breakage, text)
        with pytest.raises(Rejected):
            read(SHIPPED[kind], bad)


OWN = {
    "texts": {"symbol": "keys.symbol", "ts": "time", "price": "price", "note": "words"},
    "numbers": {"size": "size", "ts": "time", "id": "keys.id", "name": "keys.symbol"},
}
OWN_CONTRACTS = {
    "texts": {"symbol": "string", "ts": "timestamp", "price": "decimal(18,2)", "note": "string"},
    "numbers": {"size": "int", "ts": "timestamp", "id": "int", "name": "string"},
}


def made_of_fields(name: str, count: int = 300) -> list[bytes]:
    keys = {
        "keys.symbol": pa.array([f"S{n}" for n in range(count)]),
        "keys.id": pa.array(range(1, count + 1), pa.int64()),
    }
    ts = np.arange(count) * 1_234_567 + 1_767_623_400_000_000
    return own_messages(OWN[name], keys, ts, np.random.default_rng(1)).to_pylist()


@pytest.mark.parametrize("name", OWN)
def test_messages_of_fields_are_accepted_by_the_contract_that_they_are_for(name):
    model = contract([rule(field, text) for field, text in OWN_CONTRACTS[name].items()])
    texts = made_of_fields(name)
    rows = [read(model, text).model_dump(by_alias=True) for text in texts]
    symbol = "symbol" if name == "texts" else "name"
    assert [row[symbol] for row in rows] == [f"S{n}" for n in range(300)]
    assert rows[1]["ts"].isoformat() == "2026-01-05T14:30:01.234567+00:00"
    assert all(list(json.loads(text)) == list(OWN[name]) for text in texts)
    assert all(b" :" not in text for text in texts)
    if name == "numbers":
        assert [row["id"] for row in rows] == list(range(1, 301))


@pytest.mark.parametrize("breakage", KINDS)
@pytest.mark.parametrize("name", OWN)
def test_malformed_messages_of_fields_are_refused(name, breakage):
    model = contract([rule(field, text) for field, text in OWN_CONTRACTS[name].items()])
    places = places_of(OWN[name])
    assert places.key == ("symbol" if name == "texts" else "id")
    for text in made_of_fields(name, 20):
        bad = broken(breakage, text, places)
        with pytest.raises(Rejected):
            read(model, bad)


def test_times_are_written_to_the_microsecond():
    ts = np.array([0, 1, 999_999, 1_000_000, 1_767_623_400_000_001, -1])
    texts = rfc3339(ts).to_pylist()
    assert texts[:2] == ["1970-01-01T00:00:00.000000Z", "1970-01-01T00:00:00.000001Z"]
    back = [datetime.fromisoformat(text) for text in texts]
    epoch = datetime.fromisoformat("1970-01-01T00:00:00Z")
    assert [round((b - epoch).total_seconds() * 1e6) for b in back] == ts.tolist()
