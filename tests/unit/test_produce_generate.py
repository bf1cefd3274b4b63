"""Generation: the same seed gives the same messages; rates, shares and repetitions hold."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from spillway.produce import generate
from spillway.produce.generate import StreamGenerator, sources
from spillway.produce.keys import domain
from spillway.produce.recording import record
from spillway_schemas.scenario import load_scenario
from tests.scenarios import expected_results, parse_scenario

TEXT = """
seed = 9
rows = 1_200
duration_s = 600
[keys]
count = 50
[keys.alternate]
every_s = 60
factor = 8
ranges = 2
[malformed]
not-json = 0.02
tombstone = 0.01
[late]
share = 0.1
by_s = 30
[repeated]
share = 0.05
[streams.stock]
kind = "stock"
arrival = "poisson"
[streams.volume]
kind = "volume"
"""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(generate, "CHUNK_ROWS", 500)


def all_values(source: StreamGenerator) -> list[bytes | None]:
    return [v for p in source.plan for v in source.chunk(p.number).values.to_pylist()]


def test_the_same_seed_gives_the_same_messages_in_any_order_of_chunks():
    scenario = parse_scenario(TEXT)
    first = [all_values(s) for s in sources(scenario)]
    again = StreamGenerator(scenario, "volume")
    backwards = {n: again.chunk(n).values.to_pylist() for n in (2, 0, 1)}
    assert [v for n in range(3) for v in backwards[n]] == first[1]
    other = parse_scenario(TEXT.replace("seed = 9", "seed = 10"))
    assert all_values(StreamGenerator(other, "volume")) != first[1]


def test_another_stream_changes_nothing_in_this_one():
    scenario = parse_scenario(TEXT)
    alone = parse_scenario(TEXT[: TEXT.index("[streams.stock]")] + TEXT[TEXT.index("[streams.v") :])
    assert all_values(StreamGenerator(scenario, "volume")) == all_values(
        StreamGenerator(alone, "volume")
    )


def test_shares_hold_and_every_row_is_accounted_for():
    source = StreamGenerator(parse_scenario(TEXT.replace("1_200", "20_000")), "stock")
    chunks = [source.chunk(p.number) for p in source.plan]
    rows = sum(map(len, chunks))
    assert rows == source.rows == 20_000
    bad = {k: sum(c.malformed.get(k, 0) for c in chunks) for k in ("not-json", "tombstone")}
    assert bad["not-json"] == pytest.approx(400, rel=0.25)
    assert bad["tombstone"] == sum(c.values.null_count for c in chunks)
    assert sum(bad.values()) == sum(int((~c.valid).sum()) for c in chunks)
    assert sum(c.repeated for c in chunks) == pytest.approx(1000, rel=0.2)
    assert sum(c.late for c in chunks) == pytest.approx(2000, rel=0.2)


def test_poisson_arrivals_have_the_rate_and_constant_ones_are_even():
    scenario = parse_scenario(TEXT.replace("rows = 1_200", "rate = 20.0"))
    poisson, constant = sources(scenario)
    assert constant.rows == 12_000
    # 12,000 expected, standard deviation 110.
    assert abs(poisson.rows - 12_000) < 500
    for source in (poisson, constant):
        due = np.concatenate([source.chunk(p.number).due_s for p in source.plan])
        assert (np.diff(due) >= 0).all()
        assert due[-1] < 600
        gaps = np.diff(due)
        if source is constant:
            assert np.allclose(gaps, 0.05)
        else:
            assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)


def test_alternation_moves_the_busy_half():
    source = StreamGenerator(parse_scenario(TEXT.replace("1_200", "20_000")), "volume")
    parts, due = [], []
    for plan in source.plan:
        chunk = source.chunk(plan.number)
        parts.append(source.domain.parts[chunk.keys])
        due.append(chunk.due_s)
    part, period = np.concatenate(parts), (np.concatenate(due) // 60).astype(int)
    for p in range(10):
        assert (part[period == p] == p % 2).mean() == pytest.approx(8 / 9, abs=0.05)


def test_late_rows_are_earlier_by_at_most_the_limit():
    plain = TEXT.replace("not-json = 0.02\ntombstone = 0.01", "").replace(
        "share = 0.05", "share = 0"
    )
    chunk = StreamGenerator(parse_scenario(plain), "volume").chunk(0)
    texts = [json.loads(value)["ts"].rstrip("Z") for value in chunk.values.to_pylist()]
    after_s = (np.array(texts, "datetime64[us]") - np.datetime64("2026-01-05T14:30:00")) / (
        np.timedelta64(1, "s")
    )
    behind = chunk.due_s - after_s
    assert (behind > 0.001).sum() == chunk.late > 20
    assert behind.max() <= 30.001


def test_expected_results_are_a_plain_count():
    scenario = parse_scenario(TEXT)
    counts = []
    for source in sources(scenario):
        seen: dict[str, int] = {}
        for plan in source.plan:
            chunk = source.chunk(plan.number)
            for value, valid in zip(chunk.values.to_pylist(), chunk.valid, strict=True):
                if valid:
                    symbol = json.loads(value)["symbol"]
                    seen[symbol] = seen.get(symbol, 0) + 1
        counts.append(seen)
    wanted = sum(n * counts[1].get(symbol, 0) for symbol, n in counts[0].items())
    assert expected_results(scenario) == wanted > 10_000


OWN = """
seed = 3
rows = 1_200
duration_s = 600
[keys]
count = 40
[keys.alternate]
every_s = 60
factor = 8
ranges = 2
[domains.order]
count = 600
hashed = "id"
[malformed]
not-json = 0.01
tombstone = 0.01
null-key = 0.01
wrong-type = 0.01
bad-utf8 = 0.01
[late]
share = 0.1
by_s = 30
[repeated]
share = 0.05
[streams.orders]
draws = { order = { distribution = "tuple-range" } }
[streams.orders.fields]
number = "order.id"
symbol = "keys.symbol"
company = "keys.id"
ts = "time"
price = "price"
[streams.stock]
kind = "stock"
"""


def test_fields_of_one_domain_are_of_the_same_key_and_domains_are_drawn_apart():
    source = StreamGenerator(parse_scenario(OWN.replace("share = 0.05", "share = 0")), "orders")
    found = [json.loads(v) for p in source.plan for v in valid(source.chunk(p.number))]
    assert found[0].keys() == {"number", "symbol", "company", "ts", "price"}
    symbols = domain(parse_scenario(OWN).keys).symbols.to_pylist()
    assert all(symbols[row["company"] - 1] == row["symbol"] for row in found)
    pairs = np.array([(row["number"], row["company"]) for row in found])
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.1
    everything = StreamGenerator(
        parse_scenario(OWN[: OWN.index("[malformed]")] + OWN[OWN.index("[streams.orders]") :]),
        "orders",
    )
    numbers = [json.loads(v)["number"] for v in all_values(everything)]
    assert sorted(numbers) == sorted(2 * list(range(1, 601))), "each once in every 600 rows"


def valid(chunk):
    return chunk.values.filter(pa.array(chunk.valid)).to_pylist()


def test_streams_of_fields_are_generated_like_the_others():
    scenario = parse_scenario(OWN)
    orders, stock = sources(scenario)
    first = all_values(orders)
    assert first == all_values(StreamGenerator(scenario, "orders"))
    assert orders.record_keys.to_pylist() == [str(n) for n in range(1, 601)]
    assert stock.record_keys.to_pylist() == stock.domain.symbols.to_pylist()
    chunks = [orders.chunk(p.number) for p in orders.plan]
    assert sum(c.repeated for c in chunks) > 20
    assert sum(c.late for c in chunks) > 50
    for chunk in chunks:
        of_key = [json.loads(v)["number"] for v in valid(chunk)]
        keys = chunk.keys[chunk.valid]
        assert [str(n) for n in of_key] == orders.record_keys.take(pa.array(keys)).to_pylist()
    alone = parse_scenario(OWN[: OWN.index("[streams.stock]")])
    assert all_values(StreamGenerator(alone, "orders")) == first


def test_a_busy_part_is_busy_in_fields_too():
    source = StreamGenerator(parse_scenario(OWN.replace("1_200", "20_000")), "orders")
    parts = domain(parse_scenario(OWN).keys).parts
    rows = [json.loads(v) for p in source.plan for v in valid(source.chunk(p.number))]
    ids = np.array([row["company"] for row in rows])
    period = np.arange(len(ids)) * 10 // len(ids)
    assert np.mean(parts[ids - 1] == period % 2) == pytest.approx(8 / 9, abs=0.06)


def test_a_recording_of_fields_has_their_kafka_keys(tmp_path):
    made = tmp_path / "own.jsonl"
    assert record(parse_scenario(OWN), made) == 2_400
    lines = [json.loads(line) for line in made.read_text().splitlines()]
    orders = [line for line in lines if line["topic"] == "orders"]
    texts = [line for line in orders if isinstance(line.get("value"), dict)]
    whole = [line for line in texts if line["value"]["number"] is not None]
    assert len(whole) > 1_000
    assert all(line["key"] == str(line["value"]["number"]) for line in whole)


@pytest.mark.parametrize("stream", "abcde")
def test_a_five_way_stream_has_every_key_as_often_as_its_ratio_says(stream, monkeypatch):
    monkeypatch.setattr(generate, "CHUNK_ROWS", 50_000)
    scenario = load_scenario("five-way").model_copy(update={"rows": 20_000})
    source = StreamGenerator(scenario, stream)
    rows = [json.loads(value) for value in all_values(source)]
    for field, text in scenario.streams[stream].fields.items():
        if text == "price":
            continue
        keys = scenario.domain(text.removesuffix(".id"))
        made = domain(keys)
        ratio = dict(zip(made.ids.tolist(), made.ratios.tolist(), strict=True))
        in_range = int(made.ratios.sum())
        assert in_range == pytest.approx(keys.tuple_range, rel=0.001)
        for begin in range(0, len(rows) - in_range, in_range):
            assert Counter(row[field] for row in rows[begin : begin + in_range]) == ratio


def test_the_sample_day_is_the_recording_of_its_scenario(tmp_path, monkeypatch, request):
    monkeypatch.setattr(generate, "CHUNK_ROWS", 50_000)
    made = tmp_path / "day.jsonl"
    assert record(load_scenario("sample-day"), made) == 2_200
    kept = request.config.rootpath / "samples" / "day-2026-01-05.jsonl"
    assert made.read_bytes() == kept.read_bytes()


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("demo", 1e6, 3e6), pytest.param("bench", 13e6, 13.5e6, marks=pytest.mark.server)],
)
def test_shipped_scenarios_have_a_sane_number_of_results(name, least, most, monkeypatch):
    monkeypatch.setattr(generate, "CHUNK_ROWS", 50_000)
    assert least < expected_results(load_scenario(name)) < most
