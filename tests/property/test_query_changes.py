"""What is told of a changed query is all that has changed: no less, and nothing else.

Beside random trees of joins, random edits of a query's file. The reference is the fingerprint,
which is of the whole meaning.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import strategies as st

from spillway_schemas.query import Query, query_from, query_of
from spillway_schemas.query_changes import changes, facts
from spillway_schemas.tomlfile import parse_toml
from tests.lanes import explored
from tests.property.test_query_trees import text_of

BASE = """
[streams.trade]
topic = "trades"
fields = { symbol = "string", ts = "timestamp", price = "double", note = "string?" }
filter = "price > 0"
time = "ts"

[streams.quote]
fields = { symbol = "string", ts = "timestamp", bid = "decimal(18,4)" }
time = "ts"

[join]
inputs = ["trade", "quote"]
on = ["symbol"]
window = "10 minutes"
lateness = "5 seconds"

[results]
columns = ["trade.price", "quote.bid"]
"""

EDITS = [
    ("trades", "trades-v2", "stream trade: topic trades -> topic trades-v2"),
    ('"trades"', '"trades"\nformat = "avro"', "stream trade: format: new: avro"),
    (
        '"trades"',
        '"trades"\nformat = "fixed"\noptions = { width = "8" }',
        "stream trade: format: new: fixed, width = 8",
    ),
    ('price = "double"', 'price = "double?"', "stream trade: field price: double -> double?"),
    (', note = "string?"', "", "stream trade: field note: goes: string?"),
    (', bid = "', ', size = "int", bid = "', "stream quote: field size: new: int"),
    ("price > 0", "price > 1", "stream trade: filter: price > 0 -> price > 1"),
    ('filter = "price > 0"', "", "stream trade: filter: goes: price > 0"),
    (
        'on = ["symbol"]',
        "on = [{ name = 'symbol', expression = 'upper(symbol)' }]",
        "join: key symbol: trade.symbol = quote.symbol -> "
        "upper ( symbol ) of trade = upper ( symbol ) of quote",
    ),
    ('window = "10', 'window = "12', "join: window: 10 minutes -> 12 minutes"),
    (
        'window = "10 minutes"',
        'within = { quote = "-5 seconds .. 1 minute" }',
        "join: window: 10 minutes -> -5 seconds .. 1 minute",
    ),
    ('lateness = "5', 'lateness = "6', "time: lateness: 5 seconds -> 6 seconds"),
    (
        'lateness = "5 seconds"',
        'lateness = "5 seconds"\nidle_after = "1 minute"',
        "time: idle_after: new: 1 minute",
    ),
    (
        'window = "10 minutes"\nlateness = "5 seconds"',
        'optional = ["quote"]',
        "join: optional: new: quote",
    ),
    (', "quote.bid"', "", "stream quote: column quote_bid of the results: goes: carried"),
    (
        '["trade", "quote"]',
        '["quote", "trade"]',
        "order: of the streams: trade, quote -> quote, trade",
    ),
]


def query(text: str) -> Query:
    return query_of(parse_toml(text, Path("q.toml")))


@pytest.mark.parametrize(("old", "new", "told"), EDITS)
def test_what_is_told_of_one_edit(old: str, new: str, told: str) -> None:
    assert BASE.count(old) == 1
    before, after = query(BASE), query(BASE.replace(old, new))
    assert told in [each.text for each in changes(before, after)]
    # And back: what was new goes, what went is new.
    back = changes(after, before)
    assert {(c.what, c.new, c.old) for c in back} == set(changes(before, after))


def test_a_stream_that_comes_is_one_change() -> None:
    more = BASE.replace('"quote"]', '"quote", "review"]') + "\n"
    more = more.replace("[join]", '[streams.review]\nschema = "review"\ntime = "ts"\n[join]')
    told = [each.text for each in changes(query(BASE), query(more))]
    assert told == [
        "join: of trade, quote -> of trade, quote, review",
        "join: key symbol: trade.symbol = quote.symbol -> "
        "trade.symbol = quote.symbol = review.symbol",
        "stream review: new: topic review",
    ]


@explored(100, 300, st.integers(0, 2**32), soak=6000)
def test_all_changes_are_told_and_no_other(seed: int) -> None:
    """Two queries say the same exactly when their fingerprints are equal."""
    rng = random.Random(seed)
    if rng.random() < 0.5:
        texts = [text_of(rng.randrange(10**6)) for _ in range(2)]
        texts[1] = rng.choice([texts[1], _edited(texts[0], rng)])
    else:
        texts = [BASE, BASE]
        for at in range(2):
            for old, new, _ in rng.sample(EDITS, rng.randrange(3)):
                texts[at] = texts[at].replace(old, new)
    try:
        one, other = map(query, texts)
    except ValueError:  # two edits that do not go together
        return
    found = changes(one, other)
    assert bool(found) == (one.fingerprint != other.fingerprint)
    assert (facts(one) == facts(other)) == (one.fingerprint == other.fingerprint)
    assert changes(one, query_from(one.text)) == []


def _edited(text: str, rng: random.Random) -> str:
    """The same tree, with a field of a key or a column of the results exchanged."""
    at = [i for i in range(len(text)) if text.startswith((".f0", ".f1", ".f2"), i)]
    if not at:
        return text
    place = rng.choice(at)
    return text[: place + 2] + rng.choice("012") + text[place + 3 :]
