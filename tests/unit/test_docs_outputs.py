"""Every output on the pages is one that the program makes: the same lines, with numbers masked.

A block of output has a comment in front of it, `<!-- output: NAME -->`, and a maker of that name
here, which has the program's own functions say it over warehouses without Spark. `...` on a page
stands for what is left out: alone for lines, within a line for words. Kills: a line, a column or a
word of what a command prints that is changed while a page still shows the old one.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import socket
import threading
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spillway import doctor, mended, sealing
from spillway.cleanup.ahead import CleanupAhead, _seconds, ahead_text
from spillway.cleanup.job import Cleaned
from spillway.cleanup.progress import outcome_sentence
from spillway.cli import main
from spillway.commands import terminal
from spillway.commands.losses import accepted_lines
from spillway.corrections.job import Corrected
from spillway.corrections.shown import corrected_lines
from spillway.demo.airflow_day import AirflowDay
from spillway.demo.day import LocalDay
from spillway.demo.phases import PhaseOutcome
from spillway.demo.place import Place
from spillway.demo.view import outcome_table, verdict_line
from spillway.doctor import inputs
from spillway.doctor.check import Check
from spillway.doctor.disks import Trial, judge_folder
from spillway.doctor.inputs import judge_topic, query_file, sessions
from spillway.doctor.machine import (
    PACKAGES,
    judge_budget,
    judge_jars,
    judge_memory,
    judge_packages,
    judge_python,
)
from spillway.doctor.ports import metrics
from spillway.following.position import FollowStep
from spillway.kafka import broker
from spillway.losses import LossAnswer
from spillway.maintenance import Amount, Maintained, Report, shown
from spillway.metrics import server
from spillway.produce import run as producing
from spillway.produce.summary import ProducedTally, Summary
from spillway.protocol.driver import _taken_over
from spillway.protocol.queries import QueryChanged, goes_on_by_another
from spillway.relay.kept import RelayPosition
from spillway.relay.lines import begin_line, step_line
from spillway.relay.run import Relayed
from spillway.report import looking
from spillway.report import status as statuses
from spillway.report.ends import HeldOffsets
from spillway.report.status import status
from spillway.stream.progress import epoch_line, start_line
from spillway.tables import SessionEvent, Warehouse
from spillway.verify.proof import VerifyReport
from spillway.verify.shown import verdict_table
from spillway_schemas.corrections import Revision
from spillway_schemas.filenames import data_name
from spillway_schemas.journal import Claim, Topic
from spillway_schemas.losses import AcceptedLoss, LostRange
from spillway_schemas.query import SHIPPED_QUERIES, query_of
from spillway_schemas.scenario import load_scenario
from spillway_schemas.settings import load_settings
from spillway_schemas.tomlfile import parse_toml
from tests.doc_blocks import ROOT, SHELL, Block, blocks
from tests.page_warehouse import page_day, write_page_warehouse, write_statistics
from tests.report_journal import (
    DAY,
    add_file,
    add_quarantine,
    fill_journal,
    make_day,
    model_of,
    open_warehouse,
    verdict,
)
from tests.sampled_topics import Partition, sample_from

GIB = 1 << 30
WIDTH = 400
NOBODY = "127.0.0.1:1"
CLUSTER = "127.0.0.1:19092, cluster 9PxjKiDfQcqnCbRMap_Pmw"

Maker = Callable[["Stage"], object]
MAKERS: dict[str, Maker] = {}


def makes(name: str) -> Callable[[Maker], Maker]:
    """Name what makes an output."""

    def named(maker: Maker) -> Maker:
        MAKERS[name] = maker
        return maker

    return named


class Stage:
    """A place to make outputs in, and what was printed there."""

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder = folder
        self.patch = patch
        self.root = folder / "w"
        self._capsys = capsys
        patch.setenv("SPILLWAY_VAR", str(folder / "var"))
        patch.chdir(folder)
        for console in (terminal.out, terminal.err):
            patch.setattr(console, "_width", WIDTH)

    def settings(self, **more: str) -> Any:
        given = {name.replace("__", "."): value for name, value in more.items()}
        fixed = {"warehouse.root": str(self.root), "kafka.bootstrap_servers": NOBODY}
        return load_settings(None, fixed | given, environ={})[0]

    def run(self, *words: str) -> None:
        """A command, whatever it ends with."""
        given = (f"warehouse.root={self.root}", f"kafka.bootstrap_servers={NOBODY}")
        with pytest.raises(SystemExit):
            main([*(word for each in given for word in ("--set", each)), *words])

    def show(self, *what: object) -> None:
        for each in what:
            terminal.out.print(each, highlight=False, soft_wrap=isinstance(each, str))

    def said(self) -> list[str]:
        """All that was printed."""
        seen = self._capsys.readouterr()
        return (seen.out + seen.err).splitlines()

    def day(self, **more: Any) -> Warehouse:
        """A day with moves, a refusal, spills, quarantine and statistics."""
        return write_page_warehouse(self.root, page_day(**more))


def source_says(module: str, text: str) -> str:
    """`text`, when a string of the module says it; what is filled in there may be anything."""
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    for node in ast.walk(tree):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        pattern = "".join(
            re.escape(part.value) if isinstance(part, ast.Constant) else ".*"
            for part in parts
            if not isinstance(part, ast.Constant) or isinstance(part.value, str)
        )
        if pattern.strip(".*") and re.fullmatch(pattern, text):
            return text
    raise AssertionError(f"{module} never says {text!r}")


# --- a day, step by step -----------------------------------------------------------------------


def _outcome(stage: Stage, kind: Any) -> None:
    warehouse = stage.day(seal_after=40)
    found = status(warehouse, stage.settings(), datetime.now(UTC), None)
    counts = {"run_time": 5, "cleanup": 5, "expected": 10, "missing": 0, "doubled": 0}
    place = Place(stage.folder, load_settings(None, {}, environ={})[0])
    day = kind(place, load_scenario("demo"), threading.Event(), lambda _: None)
    outcome = PhaseOutcome(DAY, found, counts | {"complete": True}, list(day.phases.values()))
    stage.show(outcome_table(outcome), verdict_line(outcome))


MAKERS["demo"] = lambda stage: _outcome(stage, LocalDay)
MAKERS["demo-airflow"] = lambda stage: _outcome(stage, AirflowDay)


@makes("kafka-start")
def kafka_start(stage: Stage) -> None:
    up = broker.BrokerStatus(True, True, "127.0.0.1:19092", "var/kafka", "var/kafka/broker.log", 7)
    stage.patch.setattr(broker, "start", lambda *_: up)
    main_ok(["kafka", "start"])


@makes("kafka-stop")
def kafka_stop(stage: Stage) -> None:
    stage.patch.setattr(broker, "stop", lambda *_: True)
    main_ok(["kafka", "stop"])


def main_ok(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code


@makes("produce")
def produce(stage: Stage) -> None:
    scenario = load_scenario("sample-day")
    sent = [
        ProducedTally(name, plan.rows or scenario.rows, 9, {"empty": 4}, 2, 1)
        for name, plan in scenario.streams.items()
    ]
    summary = Summary(sent, 0.4, 1)
    stage.patch.setattr(producing, "produce", lambda *_, **__: summary)
    main_ok(["produce", "sample-day", "--speed", "0"])


@makes("doctor")
def doctor_ok(stage: Stage) -> None:
    settings = stage.settings()
    spans, calendar = sessions(settings, 1_767_632_400_000)
    kept = {"cleanup.policy": "delete", "retention.ms": "-1"}
    checks = [
        judge_python((3, 11, 7)),
        Check("java", "ok", source_says("spillway.doctor.machine", "17 (/usr/bin/java)")),
        judge_jars([], 56, stage.folder),
        judge_packages(PACKAGES, PACKAGES),
        Check("open files", "ok", source_says("spillway.doctor.machine", "the limit is 20000")),
        judge_folder("warehouse", "var/warehouse", "w", Trial(65 * GIB, 0.1), "ext4"),
        judge_folder("state folder", "/dev/shm/spillway-1000", "s", Trial(23 * GIB, 0.1), "tmpfs"),
        judge_memory(
            slots=2,
            budget_bytes=GIB,
            free_bytes=23 * GIB,
            in_memory=True,
            available_bytes=23 * GIB,
        ),
        calendar,
        query_file(settings)[1],
        judge_budget(budget_bytes=GIB, least_bytes=70_000),
        Check(
            "broker",
            "ok",
            source_says("spillway.doctor.inputs", CLUSTER),
        ),
        *(
            check
            for name in ("review", "stock", "volume")
            for check in judge_topic(name, 2, kept, spans, 300_000)
        ),
        *metrics(settings),
        *doctor._tables(settings, None, thorough=True)[1],
    ]
    stage.show(doctor.table(checks))


def test_the_doctors_output_has_every_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The maker above names the checks one by one: none may be left out. On a machine where the
    kernel has never killed a process."""
    monkeypatch.setattr("spillway.doctor.machine.killed_for_memory", lambda: 0)
    settings = load_settings(
        None,
        {"warehouse.root": str(tmp_path / "w"), "kafka.bootstrap_servers": NOBODY},
        environ={},
    )[0]
    [block] = [each for each in blocks() if each.marker == "doctor"]
    shown = {re.split(r" {2,}", line)[1] for line in block.output[1:]}
    assert {c.name for c in doctor.check_all(settings)} == shown - {
        f"topic {name}" for name in ("review", "stock", "volume")
    }


@makes("stream")
def stream(stage: Stage) -> None:
    made = make_day(60, groups_depth=9)
    for line in (
        source_says("spillway.commands.stream", "checking this machine, Kafka and the tables"),
        source_says("spillway.stream.service", "starting Spark (local[*])"),
        source_says("spillway.stream.service", "trying an epoch without rows"),
    ):
        print(line)
    print(start_line(model_of(made.entries[:2]).state))
    spilling = next(each for each in made.entries if getattr(each, "cuts", None))
    for _ in range(2):
        print(epoch_line(spilling))


@makes("changed-query")
def changed_query(_: Stage) -> None:
    own = (SHIPPED_QUERIES / "symbol.toml").read_text()
    fields = 'fields = { symbol = "string", ts = "timestamp", %s, currency = "string?" }'
    old, new = (
        query_of(parse_toml(own.replace('schema = "stock"', text), Path("symbol.toml")))
        for text in (
            fields % 'price = "double"',
            fields % 'price = "decimal(18,4)"' + '\nfilter = "price > 0"',
        )
    )
    made = make_day(3, query=old.fingerprint)
    made.entries[0] = made.entries[0].model_copy(update={"text": old.text})
    with pytest.raises(QueryChanged) as refused:
        goes_on_by_another(model_of(made.entries).state, new)
    print(refused.value)


@makes("stream-again")
def stream_again(_: Stage) -> None:
    print(start_line(model_of(make_day(12, groups_depth=9).entries).state))


@makes("stream-metrics")
def stream_metrics(stage: Stage) -> None:
    address = "http://127.0.0.1:9464/metrics"
    print(source_says("spillway.commands.stream", f"figures for Prometheus: {address}"))
    stream_again(stage)


@makes("lost-state")
def lost_state(_: Stage) -> None:
    last = make_day(12).last
    lost = f"epoch {last.epoch}: slot 0 has lost its state (not found)"
    print(source_says("spillway.stream.driver", lost))
    again_ = f"epoch {last.epoch}: reading 64,218 rows again from Kafka for slots [0]"
    print(source_says("spillway.stream.driver", again_))
    read = [each.model_copy(update={"rejected": 0}) for each in last.read]
    slots = [each.model_copy(update={"spilled_bytes": 0}) for each in last.slots]
    again = {"restored_slots": [0], "read": read, "slots": slots}
    print(epoch_line(last.model_copy(update=again)))


@makes("taken-over")
def taken_over(_: Stage) -> None:
    claim = Claim(n=9, term=3, driver="host1/20692", written_at="now")
    terminal.complain(_taken_over([claim]).reason)


class Ends:
    """A cluster that is asked where topics end."""

    def cluster_id(self) -> str:
        return "c"

    def topics(self, names: list[str]) -> list[Topic]:
        return [Topic(name=name, id=name, partitions=2) for name in names]

    def end_offsets(self, topics: list[str]) -> dict[str, list[int]]:
        return {topic: [96_000, 104_000] for topic in topics}

    def offsets_for_time(self, topics: list[str], _: int) -> dict[str, list[int]]:
        return {topic: [96, 104] for topic in topics}


def _sealing(stage: Stage) -> None:
    fill_journal(open_warehouse(str(stage.root)), make_day(12).entries)
    stage.patch.setattr(sealing, "cluster", contextmanager(lambda *_: iter([Ends()])))
    stage.patch.setattr(sealing, "demand_listener", lambda _: None)


@makes("seal")
def seal(stage: Stage) -> None:
    _sealing(stage)
    stage.run("seal", "--session", DAY)


@makes("seal-close")
def seal_close(stage: Stage) -> None:
    _sealing(stage)
    stage.run("seal", "--session", DAY, "--at", "close")


@makes("withdraw")
def withdraw(stage: Stage) -> None:
    _sealing(stage)
    stage.run("seal", "--session", DAY)
    stage.said()
    stage.run("seal", "--withdraw", "--session", DAY)


@makes("cleanup")
def cleanup(_: Stage) -> None:
    print(outcome_sentence(Cleaned(DAY, False, 7, 6, 64, 5, 4, 3, 19.4)))


DETAILS = {"keys": 5, "quarantined": 4, "seconds": 27.1, "problems": [], "differences": []}


@makes("verify")
def verify(stage: Stage) -> None:
    report = VerifyReport(DAY, 13, 6, 7, 0, 0, True, dict(DETAILS))
    stage.show(verdict_table(report.to_dict()))
    print(0)


@makes("verify-incomplete")
def verify_incomplete(stage: Stage) -> None:
    places = {"stock": (1, 4711), "volume": (0, 12), "review": (3, 8)}
    lost = {
        "key": {"symbol": "AAPL"},
        "coordinates": {n: {"partition": p, "offset": o} for n, (p, o) in places.items()},
        "found": 0,
        "expected": 1,
    }
    report = VerifyReport(DAY, 13, 6, 6, 1, 0, False, DETAILS | {"differences": [lost]})
    stage.show(verdict_table(report.to_dict()))


@makes("relay")
def relay(_: Stage) -> None:
    kept = RelayPosition(warehouse="w", topic="id")
    terminal.say(begin_line("results", kept))
    for step, rows, total in (
        (FollowStep("run-time", 2, ()), 72, 72),
        (FollowStep("cleanup", 0, (), session="2026-01-05"), 576, 648),
    ):
        terminal.say(step_line(Relayed(step, rows, total, 0.2)))


@makes("cleanup-plan")
def cleanup_plan(_: Stage) -> None:
    size = 731 * 2**20
    ahead = CleanupAhead(
        DAY, False, 0, 0, 64, 64, 420, 11907, 76, 25567817, size, 0, 44632420, 33.1
    )
    for line in ahead_text(ahead):
        print(line)


@makes("accept-loss")
def accept_loss(_: Stage) -> None:
    lost = LostRange(topic="stock", partition=0, begin=0, end=4711)
    loss = AcceptedLoss(ranges=[lost], reason="", by="")
    for line in accepted_lines(DAY, LossAnswer(loss)):
        print(line)


@makes("accept-loss-open")
def accept_loss_open(_: Stage) -> None:
    lost = LostRange(topic="stock", partition=0, begin=0, end=4711)
    loss = AcceptedLoss(ranges=[lost], reason="", by="")
    for line in accepted_lines(DAY, LossAnswer(loss, 815)):
        print(line)


@makes("correct")
def correct(_: Stage) -> None:
    revision = Revision(
        revision=1, source="stock.jsonl", reason="", by="", digest="", rows=3, results=1204
    )
    for line in corrected_lines(Corrected(DAY, (), revision, False, 6.4)):
        print(line)


@makes("verify-json")
def verify_json(_: Stage) -> None:
    for module, step in (
        ("spillway.commands.verify", "reading the journal"),
        ("spillway.verify.proof", "asking Kafka whether it still has the input"),
        ("spillway.verify.proof", "reading 630,000 input rows and the results"),
    ):
        print(f"verify {DAY}: {source_says(module, step)}")
    report = VerifyReport(DAY, 13, 6, 7, 0, 0, True, {}).to_dict()
    terminal.say_json(report)


@makes("verify-no-kafka")
def verify_no_kafka(stage: Stage) -> None:
    made = make_day(60, seal_after=40)
    warehouse = open_warehouse(str(stage.root))
    fill_journal(warehouse, made.entries)
    warehouse.sessions.append(SessionEvent(session=DAY, event="cleaned"))
    stage.run("verify", "--session", DAY)


@makes("maintain")
def maintain(stage: Stage) -> None:
    some = Amount(29, 371_712)
    tables: dict[str, Any] = {
        "journal": {"merged": some, "into": 1, "deleted": some},
        "commands": {},
        "sessions": {"deleted": some},
        "spill": {"dropped": some, "sessions": [DAY]},
        "quarantine": {},
        "statistics": {},
        "results": {"deleted": some},
    }
    assert list(tables) == list(open_warehouse(str(stage.root)).names)
    done = [Maintained(name, **what) for name, what in tables.items()]
    stage.show(shown(Report(True, 7, 30, "never", done)))


# --- looking -----------------------------------------------------------------------------------


@makes("status")
def status_open(stage: Stage) -> None:
    made = make_day(60)
    for number, entry in enumerate(made.entries[2:], 2):
        slots = [each.model_copy(update={"overflow_bytes": 0}) for each in entry.slots]
        made.entries[number] = entry.model_copy(update={"slots": slots})
    fill_journal(open_warehouse(str(stage.root)), made.entries)

    def at_its_end(*given: Any, **more: Any) -> Any:
        return status(*given[:2], made.now(), *given[3:], **more)

    stage.patch.setattr(looking, "status", at_its_end)
    stage.patch.setattr(statuses, "process_runs", lambda _: True)
    stage.patch.setattr(looking, "held_offsets", lambda *_: HeldOffsets({}, made.end))
    stage.run("status")


@makes("status-closed")
def status_closed(stage: Stage) -> None:
    warehouse = open_warehouse(str(stage.root))
    made = make_day(60, seal_after=40)
    fill_journal(warehouse, made.entries)
    add_quarantine(warehouse, 0, ["not JSON: EOF while parsing a string", "ts: missing"])
    warehouse.sessions.append(SessionEvent(session=DAY, event="cleaned", cleanup=7, seconds=1.5))
    warehouse.sessions.append(verdict(complete=True))
    stage.patch.setattr(statuses, "process_runs", lambda _: False)
    stage.run("status")


@makes("status-sealed")
def status_sealed(stage: Stage) -> None:
    fill_journal(open_warehouse(str(stage.root)), make_day(60, seal_after=40).entries)
    stage.run("status")


@makes("status-cleaning")
def status_cleaning(stage: Stage) -> None:
    warehouse = open_warehouse(str(stage.root))
    fill_journal(warehouse, make_day(60, seal_after=40).entries)
    warehouse.apply_cleanup(DAY, {0: []})
    stage.run("status")


@makes("adaptations")
def adaptations(stage: Stage) -> None:
    stage.day()
    stage.run("status", "--adaptations")


@makes("quarantine-list")
def quarantine_list(stage: Stage) -> None:
    warehouse = open_warehouse(str(stage.root))
    made = make_day(4)
    fill_journal(warehouse, made.entries)
    schema = warehouse.table("quarantine").definition.file_schema
    found = {
        "empty value": b"",
        "price: a number is needed": b'{"symbol":"YVFHI","price":"1"}',
        "ts: missing": b'{"symbol":"BWNXD","shares":7}',
    }
    rows = [
        {
            "topic": "volume" if reason.startswith("ts") else "stock",
            "partition": 3,
            "offset": 53_004 - number,
            "reason": reason,
            "value": value,
            "kafka_timestamp": made.now(),
            "epoch": 0,
            "written_at": made.now(),
        }
        for number, (reason, value) in enumerate(found.items())
    ]
    name = data_name(0, "a" * 12, 0, 0)
    add_file(warehouse, "quarantine", name, 0, pa.Table.from_pylist(rows, schema=schema))
    stage.run("quarantine", "list", "--session", DAY, "--limit", "3")


def _line(topic: str, **fields: object) -> str:
    """A line of a file of mended rows."""
    value = json.dumps({"symbol": "A", "ts": "2026-01-05T14:30:00Z", **fields})
    return json.dumps({"topic": topic, "value": value})


@makes("replay")
def replay(stage: Stage) -> None:
    Path("bad.jsonl").write_text(_line("stock", price=1.0) + "\n")
    stage.patch.setattr(mended, "demand_listener", lambda _: None)
    stage.patch.setattr(mended, "cluster", lambda *_: nullcontext())
    stage.patch.setattr(mended, "topic_problems", lambda *_: [])
    stage.patch.setattr(mended, "_send", lambda *_: None)
    main_ok(["quarantine", "replay", "bad.jsonl"])


@makes("replay-refused")
def replay_refused(_: Stage) -> None:
    broken = '{"topic": "stock" "value": 1}'
    lines = (_line("stock", price=1.0), _line("volume", shares="7"), broken)
    Path("bad.jsonl").write_text("\n".join(lines))
    with pytest.raises(SystemExit):
        main(["quarantine", "replay", "bad.jsonl"])


@makes("query-errors")
def query_errors(stage: Stage) -> None:
    page = (ROOT / "docs" / "your-query.md").read_text()
    text = next(each for each in re.findall(r"```toml\n(.*?)```", page, re.S) if "[join]" in each)
    for right, wrong in {
        '"price > 0"': '"median(price) > 0"',
        'trade = "ticker"': 'trade = "symbol"',
        '"stock.price"': '"stock.prize"',
    }.items():
        assert right in text
        text = text.replace(right, wrong)
    Path("trades.toml").write_text(text)
    with pytest.raises(SystemExit):
        main(["--set", "query=trades.toml", "stream"])


@makes("explain")
def explain(stage: Stage) -> None:
    stage.patch.setenv("COLUMNS", "80")
    page = (ROOT / "docs" / "your-query.md").read_text()
    examples = re.findall(r"```toml\n(.*?)```", page, re.S)
    [tree] = [each for each in examples if "[join.named]" in each]
    Path("named.toml").write_text(tree)
    main_ok(["explain", "named.toml"])


@makes("explain-estimate")
def explain_estimate(stage: Stage) -> None:
    stage.patch.setenv("COLUMNS", "100")
    page = (ROOT / "docs" / "your-query.md").read_text()
    text = next(each for each in re.findall(r"```toml\n(.*?)```", page, re.S) if "[join]" in each)
    Path("trades.toml").write_text(text)
    draw = np.random.default_rng(7)
    day = datetime(2026, 1, 5, 14, 30, tzinfo=UTC)

    def partition(rows: int, name: str, more: str) -> Partition:
        minutes = np.sort(draw.integers(0, 390, rows))
        keys = np.minimum(draw.zipf(1.3, rows), 400)
        made: list[tuple[int, bytes | None]] = []
        for minute, key in zip(minutes.tolist(), keys.tolist(), strict=True):
            at = day + timedelta(minutes=minute)
            value = f'{{"{name}":"S{key}","ts":"{at.isoformat()}",{more}}}'.encode()
            made.append((int(at.timestamp() * 1000), b"{" if key == 7 else value))
        return made

    topics = {
        "stock": [partition(20_000, "symbol", '"price":1.5') for _ in range(4)],
        "trades-v2": [partition(40_000, "ticker", '"price":"2.5"') for _ in range(4)],
    }
    sample_from(stage.patch, topics)
    main_ok(["explain", "trades.toml", "--estimate", "--rows", "50000"])


# --- moving ------------------------------------------------------------------------------------


def _quiet_day(stage: Stage) -> None:
    """A day in which nothing was moved yet."""
    made = make_day(60, groups_depth=9)
    warehouse = open_warehouse(str(stage.root))
    fill_journal(warehouse, made.entries)
    write_statistics(warehouse, made.last.epoch, made.entries[0].groups)


@makes("rebalance-move")
def rebalance_move(stage: Stage) -> None:
    _quiet_day(stage)
    stage.run("rebalance", "--move", "9/17:1", "--reason", "slot 0 is full")


@makes("rebalance-dry-run")
def rebalance_dry_run(stage: Stage) -> None:
    _quiet_day(stage)
    stage.run("rebalance", "--dry-run")


# --- what is wrong -----------------------------------------------------------------------------


@makes("doctor-broker")
def doctor_broker(stage: Stage) -> None:
    stage.show(doctor.table(inputs.kafka(stage.settings(), None, [], None)))


@makes("doctor-port")
def doctor_port(stage: Stage) -> None:
    stage.patch.setattr(server, "listener_of", lambda _: " by process 4711 (java)")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        stage.show(doctor.table(list(metrics(stage.settings(metrics__listen=listen)))))


@makes("doctor-memory")
def doctor_memory(stage: Stage) -> None:
    room = 64 << 20
    found = judge_memory(
        slots=2, budget_bytes=GIB, free_bytes=room, in_memory=True, available_bytes=room
    )
    stage.show(doctor.table([found]))


def _torn(stage: Stage, table: str) -> None:
    fill_journal(open_warehouse(str(stage.root)), make_day(4).entries)
    newest = max((stage.root / table / "_delta_log").glob("*.json"))
    newest.write_bytes(b"")


@makes("doctor-torn")
def doctor_torn(stage: Stage) -> None:
    _torn(stage, "journal")
    stage.show(doctor.table(doctor._tables(stage.settings(), None, thorough=True)[1]))


@makes("repair")
def repair(stage: Stage) -> None:
    warehouse = open_warehouse(str(stage.root))
    fill_journal(warehouse, make_day(4).entries)
    warehouse.apply("results", 0, [])
    newest = max((stage.root / "results" / "_delta_log").glob("*.json"))
    newest.write_bytes(b"")
    stage.run("doctor", "--repair")


@makes("doctor-gone")
def doctor_gone(stage: Stage) -> None:
    stage.day()
    for path in (stage.root / "quarantine").rglob("*.parquet"):
        path.unlink()
    stage.show(doctor.table(doctor._tables(stage.settings(), None, thorough=True)[1]))


# --- the comparison ----------------------------------------------------------------------------


def normal(line: str) -> str:
    """A line without colours, frames, numbers and the width of columns."""
    line = re.sub(r"\x1b\[[0-9;]*m|[─-╿]+", " ", line)
    line = re.sub(r"\d[\d,.]*(?<![,.])", "#", line)
    line = re.sub(r"# (B|KiB|MiB|GiB)\b", "# BYTES", line)
    line = re.sub(r"(# (d|h|min|ms|s)\b ?)+", "# TIME ", line)
    return " ".join(line.split())


def pattern(shown: list[str]) -> str:
    """What output must be, for what a page shows."""
    found = r"\A"
    for line in shown:
        if line.strip(" │.") == "" and "..." in line:
            found += r"(?:.*\n)*?"
            continue
        parts = re.split(r"\s*(?:\.\.\.|…)\s*", normal(line))
        found += ".*".join(re.escape(part) for part in parts) + r"\n"
    return found + r"\Z"


def check(shown: list[str], made: list[str]) -> None:
    lines = [text for line in made if (text := normal(line))]
    wanted = pattern([line for line in shown if normal(line)])
    assert re.search(wanted, "".join(f"{line}\n" for line in lines)), (
        "the page shows\n  "
        + "\n  ".join(map(normal, shown))
        + "\nand the program prints\n  "
        + "\n  ".join(lines)
    )


OUTPUTS = [each for each in blocks() if each.language in SHELL and each.output]


@pytest.mark.parametrize("block", OUTPUTS, ids=[each.where for each in OUTPUTS])
def test_an_output_is_what_the_program_prints(
    block: Block,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert block.marker in MAKERS, "an output needs `<!-- output: NAME -->`, and a maker here"
    stage = Stage(tmp_path, monkeypatch, capsys)
    MAKERS[block.marker](stage)
    check(block.output, stage.said())


def test_the_time_that_the_runbook_shows_is_that_of_its_rows() -> None:
    """Numbers are masked above. Kills: a new cost of a row, and the page keeps the old time."""
    page = (ROOT / "docs" / "runbook.md").read_text()
    shown = re.search(
        r"spilled rows +(\S+)\n.*\nmissing results +(\S+)\ntakes about +(\S+) s", page
    )
    assert shown is not None
    rows, missing, seconds = (float(each.replace(",", "")) for each in shown.groups())
    assert _seconds(rows, int(missing), 2) == seconds


def test_every_maker_is_shown() -> None:
    assert {each.marker for each in OUTPUTS} == MAKERS.keys()


@pytest.mark.parametrize(
    ("shown", "made", "same"),
    [
        (["1,234 rows in 5.6 s"], ["7 rows in 0.1 s"], True),
        (["7 rows"], ["7 lines"], False),
        (["┌──┐", "│ a │ 1 │"], ["╭────╮", "│ a   │  22 │"], True),
        (["a", "c"], ["a", "b", "c"], False),
        (["a", "...", "c"], ["a", "b", "c"], True),
        (["a ... c"], ["a b c"], True),
        (["a"], ["a", "b"], False),
        (["a", "..."], ["a", "b"], True),
        (["3.0 MiB"], ["12 KiB"], True),
    ],
)
def test_lines_are_compared_without_their_numbers(
    shown: list[str], made: list[str], same: bool
) -> None:
    if same:
        check(shown, made)
    else:
        with pytest.raises(AssertionError):
            check(shown, made)
