"""Windows in a query, and rows judged by their times."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spillway.decode import compile_streams, decode
from spillway.decode.lateness import judged
from spillway.decode.reasons import kind_of
from spillway.report.model import EventTimeStatus
from spillway.report.terminal import event_time_texts
from spillway_schemas.durations import duration_text, duration_us
from spillway_schemas.query import Query, QueryError, query_of
from spillway_schemas.tomlfile import parse_toml
from spillway_schemas.windows import BEGINNING_US, Judging, band_us

SECOND, MINUTE = 1_000_000, 60_000_000

WINDOWED = """
[streams.trade]
fields = { symbol = "string", at = "timestamp", on = "timestamp?", price = "int" }
time = "at"
filter = "price > 0"
[streams.quote]
fields = { symbol = "string", at = "timestamp" }
time = "at"
[streams.company]
fields = { name = "string", symbol = "string" }
[join.quoted]
inputs = ["trade", "quote"]
on = ["symbol"]
within = { quote = "-5 seconds .. 1 minute" }
lateness = "2 minutes"
idle_after = "1500 ms"
[join.named]
inputs = ["quoted", "company"]
on = ["symbol"]
"""


def query(text: str = WINDOWED) -> Query:
    return query_of(parse_toml(text, Path("q.toml")))


def problems(text: str) -> list[str]:
    with pytest.raises(QueryError) as caught:
        query(text)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("10 minutes", 600 * SECOND),
        ("1 minute", MINUTE),
        (" 90 s ", 90 * SECOND),
        ("2h", 7200 * SECOND),
        ("1 Day", 86_400 * SECOND),
        ("500 ms", 500_000),
        ("7 us", 7),
        ("0 seconds", 0),
        ("366 days", 366 * 86_400 * SECOND),
    ],
)
def test_lengths_of_time(text: str, us: int) -> None:
    assert duration_us(text) == us
    assert duration_us(f"- {text.strip()}", signed=True) == -us
    assert duration_us(duration_text(us)) == us


def test_a_length_is_told_in_its_largest_unit() -> None:
    told = [duration_text(us) for us in (0, 1, 1_500_000, SECOND, 90 * SECOND, 2 * 3600 * SECOND)]
    assert told == ["0 seconds", "1 us", "1,500 ms", "1 second", "90 seconds", "2 hours"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "soon",
            "'soon' is not a length of time; write a whole number of us, ms, seconds, minutes",
        ),
        ("1.5 hours", "is not a length of time"),
        ("-1 second", "is less than nothing; write it without the sign"),
        ("5 weeks", "is not a length of time"),
        ("3 ss", "is not a length of time"),
        ("367 days", "'367 days' is more than 366 days"),
    ],
)
def test_what_is_no_length(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        duration_us(text)


def test_bands() -> None:
    assert band_us("-5 seconds .. 1 minute") == (-5 * SECOND, MINUTE)
    with pytest.raises(ValueError, match=r"'5 s' is not a band; write for example"):
        band_us("5 s")
    with pytest.raises(ValueError, match=r"the band '5 s .. 4 s' ends before it begins"):
        band_us("5 s .. 4 s")


def test_what_a_query_says_of_time() -> None:
    found = query()
    quoted, named = found.spans
    assert quoted is not None
    assert (quoted.bands_us, named) == (((0, 0), (-5 * SECOND, MINUTE)), None)
    assert [found.is_timed(name) for name in ("quoted", "named")] == [True, False]
    assert found.event_time is not None
    assert found.event_time.model_dump() == {
        "lateness_us": 2 * MINUTE,
        "idle_after_ms": 1500,
        "ahead_us": 5 * MINUTE,
        "topics": ["quote", "trade"],
        "kept_us": None,  # what `named` holds never expires
    }
    [only] = [WINDOWED[: WINDOWED.index("[join.named]")].replace("[streams.company]\n", "# ")]
    only = only.replace('fields = { name = "string", symbol = "string" }', "").replace("# ", "#")
    alone = query(only).event_time
    assert alone is not None
    assert alone.kept_us == 65 * SECOND + 65 * SECOND // 4
    plain = query(
        WINDOWED.replace("within", "# ")
        .replace("lateness", "# ")
        .replace("idle_after", "# ")
        .replace('time = "at"', "")
    )
    assert (plain.event_time, plain.is_windowed) == (None, False)


def test_the_fingerprint_knows_time() -> None:
    known = {query().fingerprint}
    for old, new in (
        ("-5 seconds", "-6 seconds"),
        ("2 minutes", "3 minutes"),
        ("1500 ms", "1501 ms"),
        ('lateness = "2 minutes"', 'lateness = "2 minutes"\nahead = "1 s"'),
    ):
        known.add(query(WINDOWED.replace(old, new)).fingerprint)
    assert len(known) == 5
    assert query(WINDOWED.replace("2 minutes", "120 seconds")).fingerprint == query().fingerprint


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ('time = "at"\nfilter', 'time = "when"\nfilter', 4, "has no field 'when'; timestamps: at"),
        ('time = "at"\nfilter', 'time = "price"\nfilter', 4, "price is int; a time is a timestamp"),
        (
            'time = "at"\nfilter',
            'time = "on"\nfilter',
            4,
            "on is timestamp?; a time is",
        ),
        ('time = "at"\n[streams.company]', "[streams.company]", 6, 'time = "at"'),
        ('quote = "-5 seconds', 'quot = "-5 seconds', 14, "give a band to: quote"),
        ('quote = "-5 seconds', 'trade = "-5 seconds', 14, "trade is the first input"),
        ("-5 seconds ..", "-5 seconds", 14, "is not a band; write for example"),
        ("2 minutes", "late", 15, "'late' is not a length of time"),
        (
            'idle_after = "1500',
            'idle_after = "0',
            16,
            "no partition brings rows all the time: give it a length, or leave it out",
        ),
        ('lateness = "2', 'window = "1 s"\nlateness = "2', 11, "give window (all inputs"),
        (
            'inputs = ["quoted", "company"]',
            'inputs = ["quoted", "company"]\nlateness = "1 s"',
            19,
            "it is of a window: give the join window or within",
        ),
    ],
)
def test_mistakes_name_their_line(old: str, new: str, line: int, message: str) -> None:
    assert WINDOWED.count(old) == 1
    found = problems(WINDOWED.replace(old, new))
    assert any(f"q.toml:{line}: " in each and message in each for each in found), found


def test_one_watermark_is_said_once() -> None:
    two = WINDOWED.replace(
        '"company"]\n', '"company"]\nwindow = "1 s"\nlateness = "1 s"\n'
    ).replace(
        'symbol = "string" }\n[join', 'symbol = "string", at = "timestamp" }\ntime = "at"\n[join'
    )
    [found] = problems(two)
    assert "quoted and named differ: all joins of a query have one watermark" in found
    assert query(two.replace('lateness = "1 s"', "")).event_time is not None


# --- rows -------------------------------------------------------------------------------------


def values(*seconds: int, price: int = 1) -> pa.Array:
    made = [
        {"symbol": "A", "at": f"2026-01-05T10:{s // 60:02}:{s % 60:02}Z", "price": price}
        for s in seconds
    ]
    return pa.array([json.dumps(each).encode() for each in made], pa.binary())


NOON_US = 1_767_607_200 * SECOND  # 10:00 of that day


def test_late_rows_and_wrong_clocks_are_rejected_by_their_own_row() -> None:
    plan = compile_streams(query())[0]
    found = decode(plan, values(10, 20, 30, 400))
    assert found.times is not None
    assert ((found.times.kept_us - NOON_US) // SECOND).tolist() == [10, 20, 30, 400]
    kafka_ms = np.full(4, NOON_US // 1000 + 30_000)
    watermarks = NOON_US + np.array([BEGINNING_US, 20, 31, 0]) * SECOND
    watermarks[0] = BEGINNING_US
    told = judged(plan, found, kafka_ms, watermarks, 5 * MINUTE)
    assert told.kept.tolist() == [0, 1]
    assert told.rejected.tolist() == [2, 3]
    assert told.reasons == [
        "at: late by 1.000 s: the watermark has passed it",
        "at: 370.000 s ahead of Kafka, 300 s allowed",
    ]
    assert [kind_of(each) for each in told.reasons] == ["late", "ahead"]
    assert told.rows.num_rows == 2
    assert told.times is not None
    assert ((told.times.kept_us - NOON_US) // SECOND).tolist() == [10, 20]
    # The watermark follows late rows, too, but not those that are ahead.
    assert told.times.heard.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("kafka_ms", "early_s"),
    [
        (300_000 * 31_556_952_000, None),  # of the year 301970, which 64 bits do not hold in us
        (2**63 - 1, None),
        (-300_000 * 31_556_952_000, 4_613_453_625_627.387),
        (-(2**63), 4_613_453_625_627.387),
    ],
)
def test_a_kafka_time_beyond_all_microseconds_is_before_or_behind_every_row(
    kafka_ms: int, early_s: float | None
) -> None:
    """Producers date records: in nanoseconds by mistake, say."""
    plan = compile_streams(query())[0]
    found = decode(plan, values(0))
    told = judged(plan, found, np.array([kafka_ms]), np.array([BEGINNING_US]), 5 * MINUTE)
    assert told.times is not None
    if early_s is None:
        assert (told.rejected.tolist(), told.times.heard.tolist()) == ([], [0])
    else:
        assert told.reasons == [f"at: {early_s:.3f} s ahead of Kafka, 300 s allowed"]
        assert told.times.heard.tolist() == []


def test_the_watermark_follows_rows_that_the_filter_leaves_out() -> None:
    plan = compile_streams(query())[0]
    found = decode(plan, values(10, 20, price=0))
    assert (found.filtered, found.rows.num_rows) == (2, 0)
    assert found.times is not None
    assert len(found.times.kept_us) == 0
    told = judged(plan, found, np.zeros(2, np.int64) + NOON_US // 1000, np.full(2, 2**62), MINUTE)
    assert (told.rejected.tolist(), told.filtered) == ([], 2)
    assert told.times is not None
    assert told.times.heard.tolist() == [0, 1]


def test_a_row_is_judged_by_the_epoch_before_its_own() -> None:
    # Ends after each epoch of the session, and the watermarks then.
    judging = Judging.by_epochs([(5, 100), (5, 110), (9, 110), (12, 130)])
    offsets = np.array([0, 4, 5, 8, 9, 11, 12, 99])
    found = judging.of(offsets).tolist()
    assert found == [BEGINNING_US, BEGINNING_US, 110, 110, 110, 110, 130, 130]
    assert Judging.by_epochs([]).of(offsets[:1]).tolist() == [BEGINNING_US]
    assert Judging.by_epochs([(0, 7)]).of(offsets[:2]).tolist() == [7, 7]


def test_status_tells_what_the_watermark_waits_for() -> None:
    waiting = EventTimeStatus(
        watermark=None,
        ahead_s={},
        idle={},
        unheard={"a": [0, 2], "b": [1]},
        lateness_s=0,
        idle_after_s=None,
    )
    assert event_time_texts(waiting, 0) == ["no watermark yet: no row of a/0, 2, b/1"]
    known = waiting.model_copy(
        update={
            "watermark": "2026-01-05T15:59:12.345+00:00",
            "ahead_s": {"a": 90.0},
            "idle": {"b": [1]},
        }
    )
    assert event_time_texts(known, 12_345) == [
        "watermark 2026-01-05 15:59:12 UTC, newest rows ahead of it: a 1 min 30 s",
        "idle, not waited for: b/1",
        "12,345 rows expired",
    ]
