"""The delay of results: what was sent and what was committed become figures to compare."""

from __future__ import annotations

import json
import os
import threading
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.delay import HEAD, Delay, agree, markdown, options, section
from benchmarks.side_by_side.contests import PAIR_WINDOW, SYMBOL_WINDOW, Contest
from benchmarks.side_by_side.delays import Seen, Sent, added, delays_s, quantile, seen, times_of
from benchmarks.side_by_side.outcome import Outcome, of_join
from benchmarks.side_by_side.pacing import Look, Sending, at_spark, pace, rows_of_batch
from benchmarks.side_by_side.programs import settings_text
from benchmarks.side_by_side.summary import Disagreement

START_US = 1_767_623_400_000_000


def i64(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


# ---------------------------------------------------------------------------- sent, seen, delay


def test_a_row_is_found_by_its_time_in_whatever_order_rows_were_read() -> None:
    sent = Sent.of(i64(30, 10, 20), i64(3_000, 1_000, 2_000))
    assert sent.at(i64(20, 10, 30, 10)).tolist() == [2_000, 1_000, 3_000, 1_000]


def test_two_rows_of_one_time_are_no_measure() -> None:
    with pytest.raises(ValueError, match="the same time"):
        Sent.of(i64(30, 10, 30), i64(1, 2, 3))


@pytest.mark.parametrize("unknown", [5, 15, 35])
def test_a_row_that_was_not_sent_is_an_error(unknown: int) -> None:
    sent = Sent.of(i64(10, 20, 30), i64(1, 2, 3))
    with pytest.raises(ValueError, match="never sent"):
        sent.at(i64(10, unknown))
    with pytest.raises(ValueError, match="never sent"):
        Sent.of(i64(), i64()).at(i64(10))


def test_the_delay_counts_from_the_row_that_was_sent_last() -> None:
    # The second result's row of `a` happened later; its row of `b` was sent later.
    sent = {
        "a": Sent.of(i64(10, 40), i64(1_000, 2_000)),
        "b": Sent.of(i64(20, 30), i64(1_500, 2_250)),
    }
    found = Seen({"a": i64(10, 40, 10), "b": i64(20, 30, 30)}, np.array([2_000.0, 4_000.5, 9_000]))
    assert delays_s(sent, found, 0).tolist() == [0.5, 1.7505, 6.75]


def test_a_result_counts_by_its_latest_time() -> None:
    sent = {"a": Sent.of(i64(10, 40), i64(0, 0)), "b": Sent.of(i64(20, 30), i64(0, 0))}
    found = Seen(
        {"a": i64(10, 40, 10), "b": i64(20, 20, 30)}, np.array([1_000.0, 2_000.0, 3_000.0])
    )
    assert delays_s(sent, found, 30).tolist() == [2.0, 3.0]
    assert delays_s(sent, found, 31).tolist() == [2.0]
    assert delays_s(sent, found, 41).tolist() == []
    assert delays_s(sent, found, 0, 30).tolist() == [1.0]
    assert delays_s(sent, found, 30, 40).tolist() == [3.0]


def test_the_rate_is_that_of_the_counted_rows() -> None:
    sent = Sent.of(i64(0, 10, 20, 30), i64(0, 10_000, 10_250, 10_500))
    assert sent.rate_per_s(10) == 4.0
    assert sent.rate_per_s(0) == pytest.approx(3 / 10.5)


@pytest.mark.parametrize(
    ("share", "value"),
    [(0.0, 1.0), (0.2, 1.0), (0.21, 2.0), (0.5, 3.0), (0.8, 4.0), (0.99, 5.0), (1.0, 5.0)],
)
def test_a_quantile_is_one_of_the_values(share: float, value: float) -> None:
    assert quantile(np.array([3.0, 1.0, 5.0, 2.0, 4.0]), share) == value


def test_nothing_has_no_quantile() -> None:
    with pytest.raises(ValueError, match="no result"):
        quantile(np.zeros(0), 0.5)


def test_times_of_messages_are_read_to_the_microsecond() -> None:
    values = [
        b'{"symbol":"A","ts":"2026-01-05T14:30:00.000001Z","price":1.5}',
        b'{"ts":"2026-01-05T14:30:01Z","shares":7}',
    ]
    assert times_of(values).tolist() == [START_US + 1, START_US + 1_000_000]
    assert times_of([]).tolist() == []


# --------------------------------------------------------------------------------- Delta's log


def add(path: str, *, change: bool = True) -> str:
    return json.dumps({"add": {"path": path, "dataChange": change, "size": 1}})


def test_files_with_new_rows_are_found_in_an_entry() -> None:
    entry = [
        json.dumps({"commitInfo": {"timestamp": 1}}),
        add("session_date=2026-01-05/a%20b.parquet"),
        add("merged.parquet", change=False),
        json.dumps({"remove": {"path": "gone.parquet", "dataChange": True}}),
        add("b.parquet"),
    ]
    assert added("\n".join(entry) + "\n") == ["session_date=2026-01-05/a b.parquet", "b.parquet"]
    assert added(json.dumps({"txn": {"appId": "x", "version": 1}})) == []


def results(path: Path, rows: list[tuple[str, int, int]]) -> None:
    """Results of `pair_window`: symbol, and the times of its two rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    n = len(rows)
    at = pa.timestamp("us", "UTC")
    columns = {
        "symbol": [symbol for symbol, _, _ in rows],
        "stock_ts": pa.array([time for _, time, _ in rows], at),
        "volume_ts": pa.array([time for _, _, time in rows], at),
        "stock_price": [1.0] * n,
        "stock_currency": ["USD"] * n,
        "volume_shares": [1] * n,
    }
    pq.write_table(pa.table(columns), path)


def commit(table: Path, version: int, lines: list[str], at_ns: int) -> None:
    log = table / "_delta_log"
    log.mkdir(exist_ok=True)
    entry = log / f"{version:020}.json"
    entry.write_text("\n".join(lines) + "\n")
    os.utime(entry, ns=(at_ns, at_ns))


def a_table(table: Path) -> None:
    """Two commits of results, one that has none, and one that merges their files."""
    results(table / "a.parquet", [("A", 10, 40), ("B", 20, 30)])
    results(table / "b.parquet", [("C", 50, 20)])
    results(table / "c.parquet", [("A", 10, 40), ("B", 20, 30), ("C", 50, 20)])
    commit(table, 0, [json.dumps({"metaData": {"id": "x"}})], 1_000_000)
    commit(table, 1, [add("a.parquet")], 2_500_000)
    commit(table, 2, [add("b.parquet")], 3_000_000)
    commit(table, 3, [add("c.parquet", change=False)], 9_000_000)


def test_results_are_seen_when_their_commit_is_there(tmp_path: Path) -> None:
    a_table(tmp_path)
    found = seen(tmp_path, ["stock", "volume"])
    assert {name: times.tolist() for name, times in found.ts_us.items()} == {
        "stock": [10, 20, 50],
        "volume": [40, 30, 20],
    }
    assert found.at_ms.tolist() == [2.5, 2.5, 3.0]


@pytest.mark.parametrize("gone", [0, 1])
def test_a_log_without_its_beginning_is_no_measure(tmp_path: Path, gone: int) -> None:
    a_table(tmp_path)
    (tmp_path / "_delta_log" / f"{gone:020}.json").unlink()
    with pytest.raises(ValueError, match="does not have every entry"):
        seen(tmp_path, ["stock", "volume"])


def test_a_table_without_results_is_empty(tmp_path: Path) -> None:
    commit(tmp_path, 0, [json.dumps({"metaData": {"id": "x"}})], 1)
    found = seen(tmp_path, ["stock", "volume"])
    assert [len(found.at_ms), *map(len, found.ts_us.values())] == [0, 0, 0]


def test_only_counted_results_are_compared(tmp_path: Path) -> None:
    """Kills: a digest of all results, or by the time of one stream."""
    from deltalake import write_deltalake

    results(tmp_path / "rows.parquet", [("A", 10, 40), ("B", 20, 30), ("C", 50, 20)])
    write_deltalake(tmp_path / "table", pq.read_table(tmp_path / "rows.parquet"))
    every = of_join(tmp_path / "table", PAIR_WINDOW)
    assert of_join(tmp_path / "table", PAIR_WINDOW, 30) == every
    assert [of_join(tmp_path / "table", PAIR_WINDOW, at).rows for at in (31, 40, 41, 51)] == [
        2,
        2,
        1,
        0,
    ]
    assert of_join(tmp_path / "table", PAIR_WINDOW, 31).digest != every.digest


# ------------------------------------------------------------------------- pace, and being done


@pytest.mark.parametrize(("contest", "topics"), [(SYMBOL_WINDOW, 3), (PAIR_WINDOW, 2)])
def test_half_the_rate_for_the_whole_time(contest: Contest, topics: int) -> None:
    wanted = pace(contest, 2_400.0, 30.0, 120.0)
    assert wanted.scenario.rows == 2_400 * 150 // topics
    assert len(wanted.scenario.streams) == topics
    assert wanted.speed == 23_400 / 150
    assert wanted.since_us == START_US + 30 * 156 * 1_000_000
    assert wanted.middle_us == START_US + 90 * 156 * 1_000_000
    assert wanted.scenario.keys is not None
    assert wanted.scenario.keys.count == 2_400 * 150 // topics // 8


BATCH = 'v1\n{"batchWatermarkMs":0}\n{"stock":{"0":5,"1":7}}\n{"volume":{"0":11,"1":0}}'


def test_rows_of_a_batch_are_the_sum_of_its_offsets() -> None:
    assert rows_of_batch(BATCH) == 23
    assert rows_of_batch('v1\n{}\n-\n{"volume":{"0":11}}') == 11


def test_spark_is_where_its_last_complete_batch_is(tmp_path: Path) -> None:
    look = at_spark(tmp_path, 2)
    assert (look.ready(), look.rows()) == (False, 0)
    for source in ("0", "1"):
        assert not look.ready()
        (tmp_path / "sources" / source).mkdir(parents=True)
        (tmp_path / "sources" / source / "0").touch()
    assert look.ready()
    (tmp_path / "offsets").mkdir()
    (tmp_path / "commits").mkdir()
    for batch in (9, 10, 11):
        (tmp_path / "offsets" / f"{batch}").write_text(BATCH.replace("11", f"{batch}"))
        (tmp_path / "commits" / f".{batch}.crc").touch()
    for batch in (9, 10):
        (tmp_path / "commits" / f"{batch}").touch()
    assert look.rows() == 22


def test_sending_begins_when_rows_are_waited_for_and_holds_when_all_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kills: an end before everything is read, or after a failure."""
    from benchmarks.side_by_side import pacing as module

    calls: list[str] = []

    class Done:
        rows = 10

    def produce(scenario: Any, bootstrap: str, **how: Any) -> Done:
        calls.append(bootstrap)
        assert how["speed"] == 156.0
        how["progress"](None)
        return Done()

    monkeypatch.setattr(module, "ASK_S", 0.0)
    monkeypatch.setattr(module, "produce", produce)
    ready, read = [False], [0]
    wanted = pace(PAIR_WINDOW, 100.0, 30.0, 120.0)
    with Sending(wanted, "here:1", Look(lambda: ready[0], lambda: read[0])) as until:
        assert not until()
        assert not calls
        ready[0] = True
        assert not until()
        until._pool.shutdown()
        assert calls == ["here:1"]
        assert not until()
        read[0] = 9
        assert not until()
        read[0] = 10
        assert until()


def test_nothing_is_sent_any_more_when_the_program_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from benchmarks.side_by_side import pacing as module

    ended: list[bool] = []
    begun = threading.Event()

    def produce(*_: Any, **how: Any) -> None:
        for _number in range(500):
            begun.set()
            how["progress"](None)
            time.sleep(0.01)
        ended.append(True)

    monkeypatch.setattr(module, "ASK_S", 0.0)
    monkeypatch.setattr(module, "produce", produce)
    wanted = pace(PAIR_WINDOW, 100.0, 30.0, 120.0)
    with Sending(wanted, "here:1", Look(lambda: True, lambda: 0)) as until:
        until()
        assert begun.wait(5.0)
    assert not ended


def test_what_goes_wrong_with_sending_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.side_by_side import pacing as module

    def produce(*_: Any, **__: Any) -> None:
        raise RuntimeError("no broker")

    monkeypatch.setattr(module, "ASK_S", 0.0)
    monkeypatch.setattr(module, "produce", produce)
    wanted = pace(PAIR_WINDOW, 100.0, 30.0, 120.0)
    with Sending(wanted, "here:1", Look(lambda: True, lambda: 0)) as until:
        until()
        until._pool.shutdown()
        with pytest.raises(RuntimeError, match="no broker"):
            until()


# ------------------------------------------------------------------------------------- figures


def of(program: str, digest: str = "d", rows: int = 812_345) -> Delay:
    outcome = Outcome(rows, digest, 1, 1)
    return Delay(
        program, 2_349.6, outcome, 2.345, 4.567, 6.789, (2.5, 2.25), cpu_s=123.4, peak_bytes=3 << 29
    )


def test_programs_with_other_results_are_not_compared() -> None:
    agree([of("join"), of("ample")])
    with pytest.raises(Disagreement, match="812,345 results with digest e"):
        agree([of("join"), of("ample", digest="e")])
    with pytest.raises(Disagreement, match="812,344 results"):
        agree([of("join"), of("ample", rows=812_344)])


def about(**sizes: Any) -> dict[str, Any]:
    return {
        "command": "python -m benchmarks.delay",
        "date": "2026-11-26",
        "machine": {"cores": 2, "cpu": "x"},
        "query": "symbol_window",
        "sizes": {
            "fastest": "join",
            "rate_per_s": 4_699.2,
            "rate_rows": 600_000,
            "aim_per_s": 2_349.6,
            "warm_up_s": 30.0,
            "seconds": 120.0,
            "trigger_s": 2.0,
            "window_s": 23.08,
            **sizes,
        },
    }


def test_the_section_has_every_figure() -> None:
    text = markdown(about(), [of("join"), of("ample")])
    assert "4,699 rows/s of all topics (measured just before, on 600,000 rows" in text
    assert (
        "got half of it, 2,350 rows/s, for 120 s after 30 s that do not count. A window is 23 s"
        in text
    )
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {line.count("|") for line in rows} == {len(HEAD) + 1}
    assert rows[1] == (
        "| Spark, stream-stream joins | 2,350 | 812,345 | 2.35 | 4.57 | 6.79 | 2.50 and 2.25 "
        "| 123 | 1.50 |"
    )
    assert "The greatest rate of Spark, stream-stream joins: 4,699" in text
    assert text.count("They have the same results.") == 1
    other = markdown(about(rate_rows=None, window_s=None), [])
    assert "(given)" in other
    assert "Spillway begins an epoch every 2 s." in text
    assert "as soon as the last one has ended" in markdown(about(trigger_s=0.0), [])
    assert "A window is" not in other


def test_spillway_alone_gets_half_of_its_own_rate() -> None:
    assert options([]).programs == ("join", "ample")
    assert options(["--alone"]).programs == ("ample",)
    text = markdown(about(fastest="ample"), [of("ample")])
    assert "The greatest rate of spillway, ample memory: 4,699" in text
    assert "It got half of it, 2,350 rows/s" in text
    assert "the same results" not in text


def test_what_a_benchmark_sets_more_stands_beside_what_it_always_sets() -> None:
    more = {"stream": {"trigger_s": 0.0}, "results": {"max_per_session": 5}}
    text = settings_text(
        "here:1",
        Path("w"),
        Path("s"),
        master="local[2]",
        slots=2,
        budget=1,
        max_rows=7,
        more=more,
    )
    found = tomllib.loads(text)
    assert found["stream"] == {"start": "earliest", "max_rows_per_epoch": 7, "trigger_s": 0.0}
    assert found["results"] == {"max_per_session": 5}


def test_each_query_has_a_section_of_its_own() -> None:
    assert section("symbol_window") == "delay"
    assert section("pair_window") == "delay-pair_window"


def test_a_page_without_the_section_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import delay as module

    page = tmp_path / "measured.md"
    page.write_text("<!-- delay -->\nfigures\n<!-- /delay -->\n")
    monkeypatch.setattr(module, "PAGE", page)
    assert options(["--docs"]).docs
    with pytest.raises(SystemExit):
        options(["--docs", "--query", "pair_window"])
    assert "no section between <!-- delay-pair_window -->" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "--query five_way",
        "--rate 0",
        "--rate 5 --rows 5",
        "--seconds 0",
        "--warm-up -1",
        "--trigger -1",
    ],
)
def test_what_cannot_be_measured_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options(words.split())
    capsys.readouterr()
