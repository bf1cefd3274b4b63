"""`spillway explain --estimate`: what is read, what is told, what is refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spillway import calendar
from spillway.cli import main
from spillway.commands import terminal
from spillway.estimate import shown
from spillway.estimate.reading import LeafRead, SessionEstimate
from spillway.estimate.scaling import Estimate, KeyEstimate
from tests.sampled_topics import Partition, sample_from

QUERY = """
[streams.trade]
fields = { symbol = "string", price = "double" }
filter = "price > 0"
[streams.quote]
fields = { symbol = "string", bid = "double" }
topic = "quotes"
[join]
inputs = ["trade", "quote"]
on = ["symbol"]
"""
CLOSE_MS = calendar.close_ms("XNYS", "2026-01-05") + 60_000  # with the grace


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trades.toml"
    path.write_text(QUERY)
    return path


def partitions(field: str, keys: list[str], at_ms: int = CLOSE_MS - 1000) -> list[Partition]:
    """Rows of these keys, in turn in two partitions; the price of each 10th is negative, each 15th
    is broken."""
    rows: list[list[tuple[int, bytes | None]]] = [[], []]
    for n, key in enumerate(keys):
        row = {"symbol": key, field: -1.5 if n % 10 == 9 and field == "price" else 1.5}
        value = b"{" if n % 15 == 14 else json.dumps(row).encode()
        rows[n % 2].append((at_ms, value))
    return [*rows]


def explained(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["--set=session.grace_s=60", "explain", *arguments])
    found = capsys.readouterr()
    assert ended.value.code == code, found.err
    return found.err if code else found.out


def counts(rows: list[Partition], field: str) -> Counter[str]:
    """By symbol, the rows that count."""
    values = [value for each in rows for _, value in each if value != b"{"]
    good = [row for row in map(json.loads, filter(None, values)) if row[field] > 0]
    return Counter(row["symbol"] for row in good)


def test_where_everything_is_read_the_numbers_are_exact(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(1)
    keys = [[f"S{k}" for k in draw.zipf(1.5, 300) % 40] for _ in range(2)]
    topics = {"trade": partitions("price", keys[0]), "quotes": partitions("bid", keys[1])}
    assert sample_from(monkeypatch, topics) == []
    found = json.loads(explained(capsys, str(file), "--estimate", "--json"))
    by_key = Counter[str]()
    trades, quotes = counts(topics["trade"], "price"), counts(topics["quotes"], "bid")
    for key in trades:
        by_key[key] = trades[key] * quotes[key]
    total = sum(by_key.values())
    guess = found["estimate"]
    assert guess["results"] == {"value": total, "low": total, "high": total, "exact": True}
    named = {each["key"]: each["results"]["value"] for each in guess["keys"]}
    assert named == {key: by_key[key] for key in named}
    assert sorted(named.values()) == sorted(n for _, n in by_key.most_common(10))
    trade, quote = guess["leaves"]
    assert trade["sampled"] == {"kept": sum(trades.values()), "rejected": 20, "filtered": 20}
    assert quote["sampled"] == {"kept": sum(quotes.values()), "rejected": 20, "filtered": 0}
    assert trade["reason"].startswith("not JSON: ")
    assert (quote["name"], quote["topic"], quote["offsets"]) == ("quote", "quotes", 300)
    assert [join["name"] for join in found["joins"]] == ["join"], "the tree is there as well"


def test_a_sample_is_told_with_how_far_it_may_be_off(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal.out, "_width", 100)
    draw = np.random.default_rng(1)
    keys = [[f"S{k}" for k in draw.integers(0, 50, 24_000)] for _ in range(2)]
    topics = {"trade": partitions("price", keys[0]), "quotes": partitions("bid", keys[1])}
    trades, quotes = counts(topics["trade"], "price"), counts(topics["quotes"], "bid")
    exact = sum(trades[key] * quotes[key] for key in trades)
    read = sample_from(monkeypatch, topics)
    told = explained(capsys, str(file), "--estimate", "--rows", "6000")
    assert {topic for topic, _ in read} == {"trade", "quotes"}
    assert sum(rows for _, rows in read) < 48_000, "not all"
    guess = json.loads(explained(capsys, str(file), "--estimate", "--rows=6000", "--json"))
    results = guess["estimate"]["results"]
    assert results["low"] < exact < results["high"] < 2 * exact
    assert explained(capsys, str(file), "--estimate", "--rows", "6000") == told, "repeatable"
    assert "19 of 20 samples are right with" in told
    assert "A key may be missing whose rows all lie within" in told
    assert "rough" not in told
    for part in ("trade", "24,000", "24 %", "key (symbol)"):
        assert part in told


def test_a_topic_that_breaks_its_contract_is_told_with_the_commonest_reason(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal.out, "_width", 200)
    good, bad = b'{"symbol":"A","price":1.5}', b'{"symbol":"A","price":"1.5"}'
    quotes: list[Partition] = [[(0, b'{"symbol":"A","bid":1.5}')] * 4]
    sample_from(monkeypatch, {"trade": [[(0, bad)] * 3 + [(0, b"{")]], "quotes": quotes})
    told = explained(capsys, str(file), "--estimate")
    assert (
        "Of trade, 100 % of the sampled rows break their contract; the commonest reason: "
        "price: a number is needed\n" in told
    )
    assert "Of quote" not in told
    sample_from(monkeypatch, {"trade": [[(0, good)] * 3], "quotes": quotes})
    assert "contract" not in explained(capsys, str(file), "--estimate")
    guess = json.loads(explained(capsys, str(file), "--estimate", "--json"))["estimate"]
    assert [leaf["reason"] for leaf in guess["leaves"]] == [None, None]


def test_two_readings_of_a_stream_have_samples_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that occur once: with one sample for both, each sampled row would meet itself, and the
    estimate be four times as much."""
    file = tmp_path / "pairs.toml"
    file.write_text(
        '[streams.a]\nfields = { k = "int" }\n[join]\ninputs = ["a", "a as b"]\non = ["k"]\n'
    )
    rows: list[Partition] = [[(0, b'{"k":%d}' % k) for k in range(32_000)]]
    read = sample_from(monkeypatch, {"a": rows})
    guess = json.loads(explained(capsys, str(file), "--estimate", "--rows=8000", "--json"))
    assert sum(rows for _, rows in read) > 1.5 * 8_000, "a sample each"
    results = guess["estimate"]["results"]
    assert results["low"] < 32_000 < results["high"] < 100_000


def test_a_session_is_what_lies_between_two_closes(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = calendar.close_ms("XNYS", "2026-01-02") + 60_000
    times = [before - 1, before, CLOSE_MS - 1, CLOSE_MS]
    rows = {
        topic: [
            [(at_ms, b'{"symbol":"A","%s":%d}' % (field, n + 1)) for n, at_ms in enumerate(times)]
        ]
        for topic, field in (("trade", b"price"), ("quotes", b"bid"))
    }
    sample_from(monkeypatch, rows)
    sets = ("--estimate", "--json", "--session")
    guess = json.loads(explained(capsys, str(file), *sets, "2026-01-05"))["estimate"]
    assert guess["results"]["value"] == 4
    assert (guess["from"], guess["to"]) == (
        "2026-01-02T21:01:00.000+00:00",
        "2026-01-05T21:00:59.999+00:00",
    )
    assert json.loads(explained(capsys, str(file), *sets[:2]))["estimate"]["results"]["value"] == 16
    said = explained(capsys, str(file), *sets, "2026-01-07", code=2)
    assert "trade, quotes hold no row of 2026-01-07" in said


def test_rows_of_a_wrong_clock_are_no_rows_of_a_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ahead of Kafka's time by more than `ahead`: the stream will reject them."""
    file = tmp_path / "near.toml"
    streams = "".join(
        f'[streams.{name}]\nfields = {{ k = "int", at = "timestamp" }}\ntime = "at"\n'
        for name in "ab"
    )
    join = '[join]\ninputs = ["a", "b"]\non = ["k"]\nwindow = "10 minutes"\n'
    file.write_text(streams + join)
    in_time, ahead = (b'{"k":1,"at":"1970-01-01T00:%s:00Z"}' % at for at in (b"04", b"06"))
    topics = {"a": [[(0, in_time), (0, ahead)]], "b": [[(0, in_time)]]}
    sample_from(monkeypatch, topics)
    guess = json.loads(explained(capsys, str(file), "--estimate", "--json"))["estimate"]
    assert guess["results"]["value"] == 1
    assert guess["leaves"][0]["sampled"] == {"kept": 1, "rejected": 1, "filtered": 0}


def test_an_empty_topic_has_no_results(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sample_from(monkeypatch, {"trade": partitions("price", ["A"]), "quotes": [[], []]})
    told = explained(capsys, str(file), "--estimate")
    assert "Results: 0. Everything was read, so this is exact." in told


@pytest.mark.parametrize("option", [["--rows", "5"], ["--session", "2026-01-05"]])
def test_what_says_how_to_sample_needs_an_estimate(
    option: list[str], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = explained(capsys, str(file), *option, code=2)
    assert "say what --estimate reads: add it" in " ".join(said.split())


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (0, "0 %"),
        (4e-8, "< 0.0001 %"),
        (2e-6, "0.0002 %"),
        (0.00025, "0.025 %"),
        (0.123, "12 %"),
        (0.996, "99 %"),
        (1, "100 %"),
    ],
)
def test_all_is_said_of_all_alone(part: float, told: str) -> None:
    assert shown._part(part) == told


def test_a_range_that_is_shown_has_all_of_the_range_in_it() -> None:
    """Kills: ends rounded to the nearest, which cuts up to 5 % off a range."""
    assert shown._range(Estimate(3e6, 3_249_999.0, 3_410_001.0)) == "3,200,000 to 3,500,000"
    assert shown._range(Estimate(3e6, 3_299_999.0, 3_400_000.0)) == "3,200,000 to 3,400,000"
    assert shown._range(Estimate(9.0, 4.9, 99.5)) == "4 to 100"
    assert shown._range(Estimate(1e3, 999.0, 995_001.0)) == "990 to 1,000,000"
    assert shown._about(3_449_999.0) == "3,400,000"
    assert shown._about(123_456.4, exact=True) == "123,456"


def test_what_is_hardly_known_is_called_rough() -> None:
    guess = SessionEstimate(
        leaves=(LeafRead("a", "a", 10**6, 0.001, 990, 10, 0),),
        results=Estimate(0.0, 0.0, 3e6),
        names=("k", "l"),
        keys=(KeyEstimate(("x", 7), Estimate(12.0, 12.0, 12.0)),),
        gap_offsets=121_001,
        first_ms=0,
        last_ms=1_000,
        allows_for_unmet=False,
    )
    lines: list[Any] = list(shown.as_tables(guess).renderables)
    text = " ".join(line for line in lines if isinstance(line, str))
    assert "Results: the sampled rows have none with each other" in text
    assert "up to 3,000,000 or so, and more where a key's rows come one after the other" in text
    assert "19 of 20" not in text, "what such a sample says is no range"
    assert "This is a rough guess" in text
    assert "of a tree whose joins have different keys, the range does not allow for a key" in text
    assert "within 130,000 offsets of a partition" in text
    assert "1970-01-01 00:00:00 UTC to 1970-01-01 00:00:01 UTC" in text


def test_a_key_that_one_topic_is_full_of_counts_where_the_other_shows_none_of_it(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 24,000 trades one, which the sample lacks, has a key that half of the quotes have."""
    draw = np.random.default_rng(1)
    keys = [[f"S{k}" for k in draw.integers(0, 5_000, 24_000)] for _ in range(2)]
    keys[1][::2] = ["unknown"] * 12_000
    topics = {"trade": partitions("price", keys[0]), "quotes": partitions("bid", keys[1])}
    topics["trade"][0][7] = (CLOSE_MS - 1000, b'{"symbol":"unknown","price":1.5}')
    trades, quotes = counts(topics["trade"], "price"), counts(topics["quotes"], "bid")
    sample_from(monkeypatch, topics)
    guess = json.loads(explained(capsys, str(file), "--estimate", "--rows=6000", "--json"))
    results = guess["estimate"]["results"]
    assert "unknown" not in {each["key"] for each in guess["estimate"]["keys"]}, "it is not met"
    exact = sum(trades[key] * quotes[key] for key in trades)
    assert results["value"] + 12_000 < results["high"]
    assert results["low"] <= exact <= results["high"]


@pytest.mark.parametrize("window", ["", 'window = "1 minute"'])
def test_within_a_window_the_range_says_what_it_does_not_reckon_with(
    window: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pairs.toml"
    stream = '[streams.{0}]\nfields = {{ k = "int", at = "timestamp" }}\ntime = "at"\n'
    streams = stream.format("a") + stream.format("b")
    if not window:
        streams = streams.replace('time = "at"', "")
    file.write_text(f'{streams}[join]\ninputs = ["a", "b"]\non = ["k"]\n{window}\n')
    row = b'{"k":1,"at":"2026-01-05T15:00:00Z"}'
    rows: list[Partition] = [[(1_767_625_200_000, row)] * 9_000]
    monkeypatch.setattr(terminal.out, "_width", 200)
    sample_from(monkeypatch, {"a": rows, "b": rows})
    told = explained(capsys, str(file), "--estimate", "--rows=3000")
    assert ("the range does not allow for a key that one input is full of" in told) == bool(window)
    told = explained(capsys, str(file), "--estimate", "--rows=9000")
    assert "not reckoned with" not in told, "everything was read"
