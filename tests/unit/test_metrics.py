"""`/metrics`: what is served is what the journal holds; the names are the documented ones."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)

from spillway.decode.reasons import KINDS, OTHER, kind_of
from spillway.doctor.ports import metrics as port_check
from spillway.kafka import broker
from spillway.kafka.backlog import Backlog
from spillway.metrics import gathering
from spillway.metrics import server as metrics_server
from spillway.metrics.catalogue import CATALOGUE, DELAY_BUCKETS_MS
from spillway.metrics.exposition import families
from spillway.metrics.figures import (
    Days,
    JoinTotals,
    Lag,
    ScrapeFigures,
    days_of,
    journal_figures,
    lag_of,
)
from spillway.metrics.gathering import Gatherer, Quarantined
from spillway.metrics.server import CannotListen, MetricsServer, serves_spillway
from spillway.metrics.serving import serving
from spillway.readmodel.event_time import EventTimeFigures
from spillway.readmodel.groups import GroupStates
from spillway.readmodel.joins import JoinFigures, join_figures, look_at_joins
from spillway.readmodel.model import ReadModel
from spillway.readmodel.tally import delay_quantile_ms
from spillway.stream.run import Watcher
from spillway.tables import SessionEvent
from spillway_schemas.journal import DELAY_EDGES_MS, Move, Prefix
from spillway_schemas.settings import load_settings
from tests.page_warehouse import write_page_warehouse
from tests.report_journal import (
    DAY,
    TOPICS,
    add_quarantine,
    carry_out,
    fill_journal,
    make_day,
    model_of,
    open_warehouse,
    verdict,
)
from tests.scrape import Samples, figure, parsed
from tests.tree_journal import JOINS, tree_day, tree_page_day
from tests.unit.test_docs import BROKEN, cells, section

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def tallied(entries: list[Any]) -> ReadModel:
    return model_of(entries)


def full(model: ReadModel, joins: JoinTotals | None = None) -> ScrapeFigures:
    """Figures in which everything is known."""
    return ScrapeFigures(
        at_s=1_000.5,
        claimed=True,
        threshold=0.9,
        journal=journal_figures(model, 2.0, "symbol"),
        kafka_answers=True,
        lag=Lag(dict.fromkeys(TOPICS, 7), dict.fromkeys(TOPICS, 1.5)),
        quarantined={("stock", "missing"): 3},
        days=Days(unproved=1, oldest_sealed_s=900.0, incomplete=0),
        joins=joins,
    )


class Shown:
    """A collector of the same figures."""

    def __init__(self, shown: ScrapeFigures) -> None:
        self.shown = shown

    def collect(self) -> Any:
        return families(self.shown)


def text_of(shown: ScrapeFigures) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Shown(shown))  # type: ignore[arg-type]
    return generate_latest(registry).decode()


# --- figures ---------------------------------------------------------------------------------


def test_what_is_served_is_what_the_journal_holds() -> None:
    made = make_day(60, seal_after=40)
    found = parsed(text_of(full(tallied(made.entries))))
    for topic in TOPICS:
        rows = sum(n for (_, name), n in made.rows.items() if name == topic)
        assert figure(found, "spillway_rows_total", topic=topic) == rows
        assert figure(found, "spillway_lag_rows", topic=topic) == 7
        assert figure(found, "spillway_lag_seconds", topic=topic) == 1.5
    assert figure(found, "spillway_results_total") == made.results.total()
    assert figure(found, "spillway_spills_total") == made.spills
    assert figure(found, "spillway_spilled_bytes_total") == made.spilled_bytes
    assert figure(found, "spillway_flushed_bytes_total") == made.flushed_bytes
    assert figure(found, "spillway_returned_bytes_total") == made.returned_bytes
    assert figure(found, "spillway_epochs_total") == 60
    assert figure(found, "spillway_term") == 1
    assert figure(found, "spillway_up") == 1
    last = made.last
    assert figure(found, "spillway_last_epoch_timestamp_seconds") == made.now().timestamp()
    for slot in last.slots:
        labels = {"slot": str(slot.slot)}
        assert figure(found, "spillway_state_bytes", **labels) == slot.state_bytes
        assert figure(found, "spillway_state_budget_bytes", **labels) == slot.budget_bytes
        assert figure(found, "spillway_state_folder_bytes", **labels) == slot.folder_bytes
        assert figure(found, "spillway_state_rows", **labels) == slot.rows
    assert figure(found, "spillway_quarantined_rows_total", topic="stock", reason="missing") == 3
    assert figure(found, "spillway_quarantined_rows_total", topic="review", reason="missing") == 0


def test_moves_and_losses_are_counted_over_all_days() -> None:
    made = copy(make_day(60, seal_after=40))
    made.entries = list(made.entries)
    moves = [Move(group=Prefix(4, value), to=1) for value in range(5)]
    carry_out(made, 10, moves[1:3])
    carry_out(made, 55, moves[3:4], restored_slots=[0])
    carry_out(made, 57, [], queued=moves[4:])
    found = parsed(text_of(full(tallied(made.entries))))
    assert figure(found, "spillway_relocations_total") == 3
    assert figure(found, "spillway_relocations_waiting") == 1
    assert figure(found, "spillway_restored_slots_total") == 1


def test_the_delay_is_a_histogram_of_exact_counts() -> None:
    made = make_day(30)
    model = tallied(made.entries)
    found = parsed(text_of(full(model)))
    counts = model.tally.sessions[DAY].delay
    whole = sum(counts)
    assert figure(found, "spillway_production_delay_seconds_count") == whole
    assert whole > 0
    name = "spillway_production_delay_seconds_bucket"
    served = {dict(labels)["le"]: n for (each, labels), n in found.items() if each == name}
    assert len(served) == len(DELAY_BUCKETS_MS) + 1
    for edge in DELAY_BUCKETS_MS:
        below = sum(n for high, n in zip(DELAY_EDGES_MS, counts, strict=False) if high <= edge)
        assert served[repr(edge / 1000)] == below
    assert served["+Inf"] == whole
    # The sum is made of the buckets' middles: near the median when samples are close together.
    sum_s = figure(found, "spillway_production_delay_seconds_sum")
    assert sum_s is not None
    median_ms = delay_quantile_ms(counts, 0.5)
    assert median_ms is not None
    assert 0.5 < sum_s / whole / (median_ms / 1000) < 2


def test_samples_beyond_the_last_edge_count() -> None:
    beyond = [0] * len(DELAY_EDGES_MS) + [5]
    model = tallied(make_day(1).entries)
    shown = full(model)
    assert shown.journal is not None
    found = parsed(text_of(replace(shown, journal=replace(shown.journal, delay=beyond))))
    assert figure(found, "spillway_production_delay_seconds_count") == 5
    assert figure(found, "spillway_production_delay_seconds_bucket", le="3600.0") == 0


def test_buckets_are_edges_of_the_journals_histogram() -> None:
    assert set(DELAY_BUCKETS_MS) <= set(DELAY_EDGES_MS)
    assert list(DELAY_BUCKETS_MS) == sorted(DELAY_BUCKETS_MS)


def test_what_is_not_known_is_not_there() -> None:
    assert parsed(text_of(ScrapeFigures())) == {("spillway_up", ()): 0.0}
    shown = full(tallied(make_day(5).entries))
    away = parsed(text_of(replace(shown, kafka_answers=False, lag=None)))
    assert figure(away, "spillway_kafka_up") == 0
    assert not [name for name, _ in away if name.startswith("spillway_lag")]
    blind = parsed(text_of(replace(shown, quarantined=None, days=None)))
    assert not [name for name, _ in blind if "quarantined" in name or "sessions" in name]
    new = parsed(text_of(full(tallied(make_day(1).entries[:2]))))
    gone = ("last_epoch", "delay")
    assert not [name for name, _ in new if any(each in name for each in gone)]
    assert figure(new, "spillway_epochs_total") == 0


def test_labels_cannot_break_the_text() -> None:
    shown = full(tallied(make_day(3).entries))
    topic = 'a"b\\c\nd'
    found = parsed(text_of(replace(shown, lag=Lag({topic: 1}, {}))))
    assert figure(found, "spillway_lag_rows", topic=topic) == 1


# --- joins of a tree -------------------------------------------------------------------------


def of_joins(model: ReadModel, *results: int) -> list[JoinFigures]:
    """Join k holds k rows, 10 bytes each."""
    states = GroupStates.nothing(len(model.state.groups))
    found = enumerate(join_figures(model, states, [DAY]))
    return [
        each.model_copy(update={"rows": k, "bytes": 10 * k, "results": (*results, 0, 0, 0, 0)[k]})
        for k, each in found
    ]


def test_joins_of_a_tree_have_series_of_their_own(tmp_path: Path) -> None:
    made = tree_day(tmp_path, 60, seal_after=40)
    model = tallied(made.entries)
    found = parsed(text_of(full(model, JoinTotals.of(None, of_joins(model)))))
    for number, join in enumerate(JOINS):
        assert figure(found, "spillway_join_state_rows", join=join) == number
        assert figure(found, "spillway_join_state_bytes", join=join) == 10 * number
        assert figure(found, "spillway_join_results_total", join=join) == 0
        cuts = [c for e in made.entries for c in getattr(e, "cuts", ()) if c.operator == number]
        assert figure(found, "spillway_join_generations_total", join=join) == len(cuts) > 0


def test_one_join_has_the_series_that_it_had() -> None:
    found = parsed(text_of(full(tallied(make_day(60, seal_after=40).entries))))
    assert not [name for name, _ in found if "join" in name]


def test_results_of_joins_are_added_up_from_look_to_look(tmp_path: Path) -> None:
    model = tallied(tree_day(tmp_path, 3).entries)
    looks = ((100, 5), (130, 5), (130, 9), (20, 9), (25, 10))
    totals, given = None, []
    for results in looks:
        totals = JoinTotals.of(totals, of_joins(model, *results))
        given.append((totals.given["traded"], totals.given["judged"]))
    # The first look counts from; where there are fewer than before, counting began anew.
    assert given == [(0, 0), (30, 0), (30, 4), (30, 4), (35, 5)]


def test_a_gatherer_looks_at_the_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))
    monkeypatch.setattr(gathering, "TICK_S", 0.02)
    monkeypatch.setattr(gathering, "BacklogReader", FakeKafka)
    warehouse = write_page_warehouse(tmp_path / "w", made := tree_page_day(tmp_path, 24))
    held = look_at_joins(warehouse, tallied(made.entries))
    gatherer = Gatherer(settled(tmp_path))
    gatherer.on_start(None)  # type: ignore[arg-type]
    try:

        def samples() -> Samples:
            registry = CollectorRegistry(auto_describe=False)
            registry.register(gatherer)
            return parsed(generate_latest(registry).decode())

        first = ("spillway_join_state_bytes", (("join", "traded"),))
        wait_for(lambda: first in samples(), "the joins")
        found = samples()
        for each in held:
            assert figure(found, "spillway_join_state_bytes", join=each.join) == each.bytes > 0
    finally:
        gatherer.close()


# --- lag and days ----------------------------------------------------------------------------


def test_lag_in_rows_and_seconds() -> None:
    made = make_day(5)
    model = tallied(made.entries)
    ends = {topic: list(end) for topic, end in made.end.items()}
    ends["stock"][1] += 4
    ends["volume"][0] += 2
    backlog = Backlog(ends, {"stock": 7_000})
    lag = lag_of(model, backlog, 10_000)
    assert lag.rows == {"stock": 4, "volume": 2, "review": 0}
    # The age of what waits in `volume` was not given in time: it is not known.
    assert lag.seconds == {"stock": 3.0, "review": 0.0}
    ahead = lag_of(model, replace(backlog, oldest_ms={"stock": 11_000}), 10_000)
    assert ahead.seconds["stock"] == 0.0
    del ends["review"]  # a topic that has gone
    assert "review" not in lag_of(model, backlog, 10_000).rows


def test_days_that_are_not_proved() -> None:
    made = make_day(60, seal_after=40)
    model = tallied(made.entries)
    [at] = [e.written_at for e in made.entries if e.kind == "epoch" and e.sealed]
    sealed_s = datetime.fromisoformat(at).timestamp()
    sealed = SessionEvent(session=DAY, event="sealed")
    assert days_of(model, [sealed]) == Days(1, sealed_s, 0)
    assert days_of(model, [sealed, verdict(False, missing=2)]) == Days(1, sealed_s, 1)
    assert days_of(model, [verdict(False, missing=2), verdict(True)]) == Days(0, None, 0)
    assert days_of(tallied(made.entries[:20]), []) == Days(0, None, 0)


# --- reasons ---------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", [reason for _, _, reason in BROKEN])
def test_every_documented_reason_has_a_kind(reason: str) -> None:
    assert kind_of(reason) != OTHER
    assert kind_of(f"{reason} (and 2 more)") == kind_of(reason)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("ts: missing (and 1 more)", "missing"),
        ("minute: the join key is null", "null_key"),
        ("price: a number is needed", "wrong_type"),
        ("price: a finite number is needed", "not_finite"),
        ("rating: Input should be less than or equal to 5", "out_of_range"),
        ("ts: no such offset from UTC", "bad_time"),
        ("larger than 1048576 bytes, the most for a stream with a json field", "too_large"),
        ("ts: not in the years 1 to 9999 (UTC)", "bad_time"),
        ("amount: does not fit decimal(18,4)", "bad_decimal"),
        ("amount: a JSON number keeps 15 digits only; send it as a string", "bad_decimal"),
        ("extra: holds a number that is not finite", "not_finite"),
        ("no schema id: the first byte is 7b, not 00", "no_schema_id"),
        ("schema 9: the registry has no such schema", "unknown_schema"),
        ("schema 9 cannot be read: it is JSON, not AVRO", "bad_schema"),
        ("schema 9 cannot be resolved to the reader's schema", "bad_schema"),
        ("schema 9 has no message [1]", "bad_schema"),
        ("not Avro by schema 9: it ends too early", "not_decoded"),
        ("not Protobuf by quote.proto: Wire format was corrupt", "not_decoded"),
        ("not pipes: 3 fields are needed", "not_decoded"),
        ('minute: conversion from `str` to `i64` failed: ["secret"]', OTHER),
        ("empty value: missing", OTHER),  # no field is called so
        ("", OTHER),
    ],
)
def test_kinds_of_reasons(reason: str, kind: str) -> None:
    assert kind_of(reason) == kind


def test_quarantined_rows_are_counted_once_per_file(tmp_path: Path) -> None:
    warehouse = open_warehouse(str(tmp_path / "w"))
    quarantined = Quarantined(warehouse)
    assert quarantined.rows() == {}
    add_quarantine(warehouse, 0, [f"not UTF-8 (byte {k})" for k in range(9)] + ["empty value"])
    assert quarantined.rows() == {("stock", "not_utf8"): 9, ("stock", "empty"): 1}
    [counted] = warehouse.files("quarantine")
    warehouse.folder("quarantine").delete(counted.path)  # it is not read again
    add_quarantine(warehouse, 1, ["ts: missing"])
    assert quarantined.rows() == {
        ("stock", "not_utf8"): 9,
        ("stock", "empty"): 1,
        ("stock", "missing"): 1,
    }
    assert Quarantined(warehouse).rows() is None  # a file has gone: not known, and no error


# --- the thread ------------------------------------------------------------------------------


class FakeKafka:
    """In place of a BacklogReader."""

    def __init__(self, *_: object) -> None:
        pass

    def look(self, read: dict[str, list[int]]) -> Backlog:
        return Backlog({topic: [end + 1 for end in ends] for topic, ends in read.items()}, {})

    def close(self) -> None:
        pass


def settled(tmp_path: Path, **flags: object) -> Any:
    flags |= {"warehouse.root": str(tmp_path / "w")}
    return load_settings(overrides=flags, environ={})[0]


def wait_for(condition: Any, what: str) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def test_entries_are_counted_once_whether_read_or_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))
    monkeypatch.setattr(gathering, "TICK_S", 0.02)
    monkeypatch.setattr(gathering, "BacklogReader", FakeKafka)
    made = make_day(30)
    warehouse = open_warehouse(str(tmp_path / "w"))
    fill_journal(warehouse, made.entries[:20])
    gatherer = Gatherer(settled(tmp_path))
    gatherer.on_start(None)  # type: ignore[arg-type]
    try:
        for entry in made.entries[15:]:  # the first five are in the journal already
            gatherer.on_epoch(entry)

        def samples() -> Samples:
            registry = CollectorRegistry(auto_describe=False)
            registry.register(gatherer)
            return parsed(generate_latest(registry).decode())

        wait_for(lambda: samples().get(("spillway_epochs_total", ())) == 30, "all epochs")
        found = samples()
        for topic in TOPICS:
            assert figure(found, "spillway_rows_total", topic=topic) == made.rows[DAY, topic]
            assert ("spillway_lag_rows", (("topic", topic),)) in found
        assert figure(found, "spillway_kafka_up") == 1
    finally:
        gatherer.close()
    gatherer.on_epoch(made.entries[-1])
    assert not gatherer._entries, "kept though nobody takes it away"


def test_handing_over_waits_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Kafka that hangs holds up neither the stream nor a scrape."""
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))
    hangs, looking = threading.Event(), threading.Event()

    class Hanging(FakeKafka):
        def look(self, read: dict[str, list[int]]) -> Backlog:
            looking.set()
            hangs.wait(20)
            return super().look(read)

    monkeypatch.setattr(gathering, "BacklogReader", Hanging)
    made = make_day(200)
    fill_journal(open_warehouse(str(tmp_path / "w")), made.entries[:2])
    gatherer = Gatherer(settled(tmp_path))
    gatherer.on_start(None)  # type: ignore[arg-type]
    try:
        assert looking.wait(10)
        began = time.monotonic()
        for entry in made.entries[2:]:
            gatherer.on_epoch(entry)
        assert list(gatherer.collect())
        assert time.monotonic() - began < 1
    finally:
        hangs.set()
        gatherer.close()


# --- the server ------------------------------------------------------------------------------


def got(url: str, **headers: str) -> tuple[int, str, str]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def test_the_server_serves_one_path_in_both_forms(tmp_path: Path) -> None:
    port = broker.free_port()
    shown = full(tallied(make_day(5).entries))
    server = MetricsServer(f"127.0.0.1:{port}", Shown(shown))  # type: ignore[arg-type]
    server.start()
    try:
        assert server.url == f"http://127.0.0.1:{port}/metrics"
        status, kind, text = got(server.url)
        assert (status, kind.split(";")[0]) == (200, "text/plain")
        assert parsed(text) == parsed(text_of(shown))
        _, kind, text = got(server.url, Accept="application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert {f.name for f in openmetrics_families(text)} >= {"spillway_epochs", "spillway_up"}
        status, _, text = got(f"http://127.0.0.1:{port}/")
        assert (status, text) == (404, "figures for Prometheus are at /metrics\n")
        assert serves_spillway(f"127.0.0.1:{port}")
        assert serves_spillway(f"0.0.0.0:{port}")
        (check,) = port_check(settled(tmp_path, **{"metrics.listen": f"127.0.0.1:{port}"}))
        assert check.status == "ok"
        assert "a stream that runs" in check.what
    finally:
        server.close()
    with pytest.raises(urllib.error.URLError):
        got(server.url)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """Where a server listens that is patient for a moment."""
    monkeypatch.setattr(metrics_server, "WHOLE_S", 0.2)
    monkeypatch.setattr(metrics_server, "MOST_AT_ONCE", 3)
    port = broker.free_port()
    server = MetricsServer(f"127.0.0.1:{port}", Shown(ScrapeFigures()))  # type: ignore[arg-type]
    server.start()
    try:
        yield "127.0.0.1", port
    finally:
        server.close()


def dripping(client: socket.socket) -> None:
    """A byte now and then: each would begin a timeout of single reads anew."""
    with contextlib.suppress(OSError):
        while True:
            client.sendall(b"G")
            time.sleep(0.05)


def resetting(client: socket.socket) -> None:
    """Hangs up in the middle of its request."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.sendall(b"GET /met")
    client.close()


@pytest.mark.parametrize(
    "behave",
    [
        lambda _: None,
        dripping,
        resetting,
        lambda client: client.sendall(b"GET /metrics HTTP/1.1\r\nHost:"),
        lambda client: client.shutdown(socket.SHUT_WR),
        lambda client: client.sendall(b"\x00" * 70_000),
    ],
    ids=["silent", "dripping", "resetting", "half a request", "hangs up", "no HTTP"],
)
def test_a_client_that_does_not_ask_holds_nothing_and_prints_nothing(
    served: tuple[str, int], behave: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    threads = threading.active_count()
    with socket.create_connection(served) as client:
        behave(client)
        assert got(f"http://127.0.0.1:{served[1]}/metrics")[0] == 200, "others are answered"
        until = time.monotonic() + 20
        while threading.active_count() > threads:
            assert time.monotonic() < until, "its thread is still there"
            time.sleep(0.02)
    assert capfd.readouterr() == ("", "")


def test_clients_have_no_more_threads_than_are_meant_for_them(
    served: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "WHOLE_S", 60.0)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(served)) for _ in range(3)]
        with socket.create_connection(served, timeout=20) as turned_away:
            assert turned_away.recv(1) == b""
        silent.pop().close()
        until = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError):
                assert got(f"http://127.0.0.1:{served[1]}/metrics")[0] == 200
                break
            assert time.monotonic() < until
            time.sleep(0.02)


def test_what_goes_wrong_while_it_answers_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    class Broken:
        def collect(self) -> Any:
            raise RuntimeError("no figures")

    server = MetricsServer(f"127.0.0.1:{broker.free_port()}", Broken())  # type: ignore[arg-type]
    server.start()
    try:
        assert got(server.url)[0] == 500
    finally:
        server.close()
    assert "no figures" in capfd.readouterr().err


@pytest.mark.server
def test_a_port_that_is_taken_is_named_before_anything_begins(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        settings = settled(tmp_path, **{"metrics.listen": listen})
        with (
            pytest.raises(CannotListen, match=r"is taken by process .*set metrics\.listen"),
            serving(settings, Watcher()),
        ):
            pytest.fail("it began")
        (check,) = port_check(settings)
        assert check.status == "fail"
        assert "is taken by process" in check.what
        assert "metrics.listen" in check.mend
    (check,) = port_check(settings)
    assert check.status == "ok"


def test_an_address_that_is_not_ours_is_refused() -> None:
    with pytest.raises(CannotListen, match="an address of this host"):
        MetricsServer("192.0.2.1:9464", Shown(ScrapeFigures()))  # type: ignore[arg-type]


def test_off_means_off(tmp_path: Path) -> None:
    watcher = Watcher(on_start=print, on_epoch=print)
    with serving(settled(tmp_path), watcher) as address:
        assert address is None
        assert (watcher.on_start, watcher.on_epoch) == (print, print)
    (check,) = port_check(settled(tmp_path))
    assert check.status == "ok"


@pytest.mark.parametrize("listen", ["9464", "host:0", "a:1,b:2", "127.0.0.1:99999"])
def test_only_one_host_and_port_can_be_set(tmp_path: Path, listen: str) -> None:
    with pytest.raises(ValueError, match=r"metrics\.listen"):
        settled(tmp_path, **{"metrics.listen": listen})


# --- names -----------------------------------------------------------------------------------


def everything(tmp_path: Path) -> tuple[str, ScrapeFigures]:
    """Figures in which no name is missing, and a topic of which all of them tell."""
    model = tallied(tree_day(tmp_path, 60, seal_after=40).entries)
    figures = full(model, JoinTotals.of(None, of_joins(model)))
    assert figures.journal is not None
    topic = next(iter(figures.journal.rows))
    times = EventTimeFigures(1_700_000_000_500_000, {topic: 12.5}, {topic: [1, 3]}, {})
    journal = replace(
        figures.journal,
        event_time=times,
        expired_rows=7,
        outside={topic: 3},
        limit_ratio=0.25,
        write_s={"tables": 15.0, "state": 0.02},
    )
    return topic, replace(figures, journal=journal)


def test_every_name_is_served_and_documented_alike(tmp_path: Path) -> None:
    topic, figures = everything(tmp_path)
    text = text_of(figures)
    assert figure(parsed(text), "spillway_watermark_timestamp_seconds") == 1_700_000_000.5
    assert figure(parsed(text), "spillway_watermark_lag_seconds", topic=topic) == 12.5
    assert figure(parsed(text), "spillway_idle_partitions", topic=topic) == 2
    assert figure(parsed(text), "spillway_expired_rows_total") == 7
    assert figure(parsed(text), "spillway_outside_rows_total", topic=topic) == 3
    assert figure(parsed(text), "spillway_results_limit_ratio") == 0.25
    assert figure(parsed(text), "spillway_intake_held") == 0
    assert figure(parsed(text), "spillway_disk_write_seconds", disk="tables") == 15.0
    served = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M)
    types = {"info": "gauge"}  # in Prometheus' text form
    assert served == [(f.name, types.get(f.kind, f.kind)) for f in CATALOGUE]
    described = [
        (row[0], row[1], tuple(re.findall(r"\w+", row[2])))
        for row in cells(PAGE.read_text())
        if row[0].startswith("spillway_")
    ]
    assert described == [(f.name, f.kind, f.labels) for f in CATALOGUE]
    labels: dict[str, set[str]] = {name: set() for name, _ in served}
    for (name, given), _ in parsed(text).items():
        base = re.sub(r"_(bucket|sum|count)$", "", name) if "delay" in name else name
        labels[base] |= {key for key, _ in given} - {"le"}
    assert labels == {f.name: set(f.labels) for f in CATALOGUE}


def test_names_follow_the_conventions() -> None:
    for family in CATALOGUE:
        assert re.fullmatch(r"spillway_[a-z]+(_[a-z]+)*", family.name)
        assert (family.kind == "counter") == family.name.endswith("_total")
        assert (family.kind == "info") == family.name.endswith("_info")
        assert family.help.endswith(".")
        assert not re.search(r"_(ms|millis|kb|mb|percent)(_|$)", family.name)


def test_reasons_are_documented() -> None:
    assert tuple(row[0] for row in cells(section("metrics.md", "Reasons", 3))) == KINDS
    assert f"the {len(KINDS)}\nkinds" in PAGE.read_text()
