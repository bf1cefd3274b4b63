"""Corrections: what is refused, what a file says, and what counts before and after one."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from spillway.cleanup.deferred import TopicSource
from spillway.cli import app
from spillway.corrections.job import Corrected, run_correction
from spillway.corrections.kept import SessionRevisions
from spillway.corrections.rows import (
    Correction,
    CorrectionRefused,
    KeptRevision,
    check,
    from_file,
)
from spillway.corrections.shown import corrected_lines
from spillway.corrections.task import batched
from spillway.corrections.topics import begin_of, from_topic
from spillway.decode import compile_query, compile_streams
from spillway.decode.chunks import COLUMNS, Chunk, chunks_of
from spillway.engine.wire.blocks import Block
from spillway.engine.wire.datafile import write_data_file
from spillway.following.position import Position, next_step, taken
from spillway.following.rows import Follower, HistoryChanged, newest_of
from spillway.kafka.reading import TopicDeleted
from spillway.produce.recording import RecordingError
from spillway.protocol.recovery import InputChanged
from spillway.protocol.state import AnotherQuery
from spillway.sealed_input.decoding import decoded, decoded_schema
from spillway.sealed_input.timing import Timing
from spillway.storage import StorageError
from spillway.stream.messages import MessageSource
from spillway.tables import DamagedTable, SessionEvent, TableConflict, Warehouse
from spillway.tables.events import revisions_of, standing_verdicts
from spillway.verify import proof
from spillway.verify.proof import NotCleaned, verify
from spillway_schemas.corrections import Revision, TopicPlace
from spillway_schemas.filenames import data_name
from spillway_schemas.formats import Absence, Resolved
from spillway_schemas.journal import Topic
from spillway_schemas.losses import AcceptedLoss, LostRange
from spillway_schemas.query import load_query
from tests.closed_day import (
    DAY,
    NEXT,
    STREAMS,
    ClosedDay,
    Late,
    correction_of,
    make_closed_day,
)
from tests.formats import Given, avro, framed, record, written
from tests.formats import query as avro_query
from tests.fresh import fresh_seed

QUERY = load_query("symbol")
PLANS = compile_streams(QUERY)
ROWS = [Late(stream, key) for key in range(3) for stream in STREAMS]


@pytest.fixture
def day(tmp_path: Path) -> ClosedDay:
    return make_closed_day(str(tmp_path / "w"), ROWS)


def late(*rows: Late, salt: int = 1) -> Correction:
    return correction_of(rows or (Late("stock", 1),), salt, QUERY)


def untouched(day: ClosedDay) -> None:
    """Nothing of a correction is there."""
    assert "corrections" not in day.warehouse.names
    assert day.warehouse.corrections(DAY).last == 0
    assert {phase for phase, _ in day.results()} <= {"run-time"}
    assert not [e for e in day.warehouse.sessions.read() if e.event == "corrected"]


# --- what may be corrected


def test_a_session_that_is_open_is_sent_rows_instead(day: ClosedDay) -> None:
    with (
        day.without_servers(),
        pytest.raises(CorrectionRefused, match=f"{NEXT} is open: send the rows to their topic"),
    ):
        run_correction(
            lambda: None, day.warehouse, compile_query(QUERY).spec, NEXT, None, None,  # type: ignore
            fingerprint=QUERY.fingerprint,
        )  # fmt: skip


@pytest.mark.parametrize("complete", [None, False])
def test_a_day_that_is_not_proved_is_not_corrected(tmp_path: Path, complete: bool | None) -> None:
    day = make_closed_day(str(tmp_path / "w"), ROWS, proved=False)
    if complete is not None:
        day.warehouse.sessions.append(SessionEvent(session=DAY, event="verified", complete=False))
    with pytest.raises(CorrectionRefused, match=f"{DAY} is not proved complete"):
        day.correct(late())
    untouched(day)


@pytest.mark.parametrize("open_", [False, True], ids=["when sealed", "while open"])
def test_a_day_with_an_accepted_loss_is_not_told_to_prove_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_: bool
) -> None:
    """It never can: cleanup and verify again would end as they did."""
    day = make_closed_day(str(tmp_path / "w"), ROWS, proved=False)
    warehouse = day.warehouse
    if open_:
        state = warehouse.journal.state()
        assert state is not None
        lost = state.sealed[DAY].model_copy(update={"lost_to": {"stock": [1]}})
        other = replace(state, sealed={**state.sealed, DAY: lost})
        monkeypatch.setattr(warehouse.journal, "state", lambda: other)
    else:
        warehouse.sessions.append(SessionEvent(session=DAY, event="accepted"))
    warehouse.sessions.append(SessionEvent(session=DAY, event="verified", complete=False))
    with pytest.raises(CorrectionRefused, match=f"{DAY} has an accepted loss.*Make the day again"):
        day.correct(late(), warehouse)
    untouched(day)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"carry": True}, "session.carry"),
        ({"outer": True}, "the query has optional streams"),
    ],
)
def test_what_is_not_built_is_said(
    day: ClosedDay, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], told: str
) -> None:
    warehouse = day.warehouse
    state = warehouse.journal.state()
    assert state is not None
    other = replace(state, genesis=state.genesis.model_copy(update=changes))
    monkeypatch.setattr(warehouse.journal, "state", lambda: other)
    with pytest.raises(CorrectionRefused, match=told):
        day.correct(late(), warehouse)
    untouched(day)


def test_another_query_is_refused(day: ClosedDay) -> None:
    day.query = load_query("symbol_window")
    with pytest.raises(AnotherQuery):
        day.correct(late())
    untouched(day)


def test_input_that_is_gone_is_said_before_anything_is_done(day: ClosedDay) -> None:
    day.lost = "Kafka holds 'stock' partition 0 from offset 7 on"
    with pytest.raises(CorrectionRefused, match=r"from offset 7 on\. A correction is joined with"):
        day.correct(late())
    untouched(day)


def test_input_that_has_changed_is_noticed(day: ClosedDay) -> None:
    day.values["stock"][0][1] = Late("stock", 2).value(77)
    with pytest.raises(InputChanged, match="The session's input cannot be read again"):
        day.correct(late())
    untouched(day)


def test_a_full_disk_leaves_nothing(day: ClosedDay, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise StorageError(28, "the disk is full: make room")

    monkeypatch.setattr("spillway.corrections.task.write_data_files", full)
    with pytest.raises(StorageError, match="the disk is full: make room"):
        day.correct(late())
    untouched(day)


# --- a file


def lines(path: Path, *rows: Any) -> Path:
    text = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt") as file:
        file.write(text)
    return path


def message(stream: str, key: int = 1) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Late(stream, key).value(1))
    return found


@pytest.mark.parametrize("name", ["stock.jsonl", "stock.ndjson", "stock.jsonl.gz"])
def test_a_file_of_one_streams_messages(tmp_path: Path, name: str) -> None:
    path = lines(tmp_path / name, "", message("stock"), "", message("stock", 2))
    found = from_file(path, None, PLANS)
    assert found.offsets.tolist() == [2, 4]
    assert found.topics.to_pylist() == ["stock", "stock"]
    table = found.as_revision(7, 123)
    assert table["partition"].to_pylist() == [-7, -7]
    assert json.loads(table["value"][1].as_py()) == message("stock", 2)


def test_whose_messages_they_are_can_be_said(tmp_path: Path) -> None:
    path = lines(tmp_path / "late.jsonl", message("volume"))
    assert from_file(path, "volume", PLANS).topics.to_pylist() == ["volume"]
    with pytest.raises(CorrectionRefused, match=r"line 1: 'late' is not a topic .* --stream"):
        from_file(path, None, PLANS)
    with pytest.raises(CorrectionRefused, match="'trades' is no stream of the query; they are: "):
        from_file(path, "trades", PLANS)


def test_records_of_several_streams(tmp_path: Path) -> None:
    records = [{"topic": s, "value": message(s)} for s in ("volume", "stock", "volume")]
    found = from_file(lines(tmp_path / "rows.jsonl", *records), None, PLANS)
    table = found.as_revision(1, 0)
    places = zip(table["topic"].to_pylist(), table["offset"].to_pylist(), strict=True)
    assert list(places) == [("stock", 2), ("volume", 1), ("volume", 3)]


def test_bad_rows_are_named_and_nothing_is_taken(tmp_path: Path) -> None:
    bad = message("stock") | {"price": "twelve"}
    path = lines(tmp_path / "stock.jsonl", message("stock"), "", bad, {"symbol": "A"})
    with pytest.raises(CorrectionRefused) as refused:
        from_file(path, None, PLANS)
    first, second, last = str(refused.value).splitlines()
    assert first.startswith(f"{path}, line 3: stock: price: ")
    assert second.startswith(f"{path}, line 4: stock: ")
    assert last == "Nothing was done: mend these rows or remove them"
    many = lines(tmp_path / "stock.ndjson", *[bad] * 25)
    with pytest.raises(CorrectionRefused, match="and 15 more"):
        from_file(many, None, PLANS)
    null = lines(tmp_path / "rows.jsonl", {"topic": "stock", "value": None})
    with pytest.raises(CorrectionRefused, match="line 1: a row without a value"):
        from_file(null, None, PLANS)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="there is no such file"):
        from_file(tmp_path / "none.jsonl", None, PLANS)
    with pytest.raises(RecordingError, match=r"stock.jsonl:2: not JSON"):
        from_file(lines(tmp_path / "stock.jsonl", message("stock"), "{"), None, PLANS)
    with pytest.raises(CorrectionRefused, match="has no rows"):
        from_file(lines(tmp_path / "volume.jsonl"), None, PLANS)


def test_a_correction_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lines(tmp_path / "stock.jsonl", *[message("stock")] * 9)
    assert len(from_file(path, None, PLANS).topics) == 9
    monkeypatch.setattr("spillway.corrections.rows.MOST_BYTES", 100)
    with pytest.raises(CorrectionRefused, match="more than 100 B of messages"):
        from_file(path, None, PLANS)


def test_blocks_go_in_batches_of_bounded_bytes() -> None:
    blocks = [Block(n, "new", data=b"x" * size) for n, size in enumerate((3, 4, 9, 1, 1, 5))]
    found = [[block.slot for block in some] for some in batched(blocks, 7)]
    assert found == [[0, 1], [2], [3, 4, 5]]
    assert list(batched([], 7)) == []


def test_messages_of_a_table_are_chunks_by_partition() -> None:
    rows = [("b", -1, 3), ("a", -2, 9), ("b", -1, 1), ("a", -1, 4)]
    columns = [*zip(*rows, strict=True), [f"{r}".encode() for r in rows], [0] * 4]
    types = [pa.string(), pa.int32(), pa.int64(), pa.binary(), pa.timestamp("us", tz="UTC")]
    arrays = [pa.array(each, kind) for each, kind in zip(columns, types, strict=True)]
    found = [
        (chunk.topic, chunk.partition, chunk.offsets.tolist(), chunk.values.to_pylist())
        for chunk in chunks_of(pa.Table.from_arrays(arrays, names=list(COLUMNS)))
    ]
    values = {row: f"{row}".encode() for row in rows}
    assert found == [
        ("a", -2, [9], [values["a", -2, 9]]),
        ("a", -1, [4], [values["a", -1, 4]]),
        ("b", -1, [1, 3], [values["b", -1, 1], values["b", -1, 3]]),
    ]


def test_a_digest_is_of_the_rows_and_their_order() -> None:
    def of(*rows: tuple[str, bytes], place: TopicPlace | None = None) -> str:
        topics, values = zip(*rows, strict=True)
        number = np.arange(1, len(rows) + 1)
        return Correction(
            pa.array(topics), pa.array(values, pa.binary()), number, "x", place
        ).digest

    every = [
        of(("a", b"bc")),
        of(("b", b"bc")),
        of(("ab", b"c")),
        of(("a", b"b"), ("a", b"c")),
        of(("a", b"c"), ("a", b"b")),
        of(("a", b""), ("a", b"bc")),
        of(("a", b"bc"), place=TopicPlace(topic="t", id="i", end=[1])),
        of(("a", b"bc"), place=TopicPlace(topic="t", id="i", end=[2])),
    ]
    assert len(set(every)) == len(every)
    assert of(("a", b"bc")) == every[0]


def test_rows_whose_schema_came_after_them_are_no_strangers() -> None:
    """The registry did not know the id all day, and does now: a correction's rows come now."""
    schema = record(("symbol", "string"))

    class Since(Given):
        def resolve(self, schema_id: int, kafka_ms: npt.NDArray[np.int64]) -> Resolved:
            absence = Absence(1_700_000_000_000)
            return Resolved(self.schemas[schema_id], absence, "unknown until then")

    [each, *_] = compile_streams(avro_query('format = "avro"\nfields = { symbol = "string" }'))
    each = replace(each, writers=Since(written(7, schema)))
    value = framed(7, avro(schema, {"symbol": "A"}))
    rows = Correction(pa.array(["s"]), pa.array([value], pa.binary()), np.array([1]), "late")
    check(rows, [each], "late")


# --- a topic


def test_a_topic_is_read_on_from_where_the_revisions_stopped() -> None:
    def kept(topic: str, id_: str, *end: int) -> KeptRevision:
        place = TopicPlace(topic=topic, id=id_, end=list(end))
        return KeptRevision(1, topic, "", "", "", place, 1)

    some = [kept("t", "i", 3), kept("t", "i", 5, 2), kept("t", "old", 99, 99), kept("u", "i", 50)]
    from_a_file = KeptRevision(1, "t", "", "", "", None, 1)
    assert begin_of([*some, from_a_file], "t", "i", {"t": [9, 9, 9]}) == {"t": [5, 2, 0]}
    assert begin_of([], "t", "i", {"t": [9]}) == {"t": [0]}


class LateTopic:
    """A topic of two partitions, of which the second has lost its first row."""

    def __init__(self, bad: bytes = b"") -> None:
        rows = [Late("volume", 1).value(n) for n in range(5)]
        self.values = {0: rows[:2], 1: [b"gone", *rows[2:4], bad or rows[4]]}

    def topics(self, names: list[str]) -> list[Topic]:
        return [Topic(name=name, id="i", partitions=2) for name in names]

    def beginning_offsets(self, names: list[str]) -> dict[str, list[int]]:
        return {name: [0, 1] for name in names}

    def end_offsets(self, names: list[str]) -> dict[str, list[int]]:
        return {name: [2, 4] for name in names}

    def read(self, _: Any, wanted: Any) -> Iterator[Chunk]:
        for each in reversed(list(wanted)):  # partitions come in any order
            values = pa.array(self.values[each.partition][each.begin : each.end], pa.large_binary())
            offsets = np.arange(each.begin, each.end)
            yield from Chunk(each.topic, each.partition, values, offsets, offsets).parts(2)


def read_topic(
    monkeypatch: pytest.MonkeyPatch, topic: LateTopic, *kept: KeptRevision, stream: str = "volume"
) -> tuple[Correction | None, list[str]]:
    told: list[str] = []
    monkeypatch.setattr("spillway.corrections.topics.demand_listener", lambda _: None)
    monkeypatch.setattr("spillway.corrections.topics.cluster", lambda *_: nullcontext(topic))
    monkeypatch.setattr("spillway.corrections.topics.read_messages", topic.read)
    source = TopicSource(PLANS, MessageSource("b:1", {}))
    return from_topic(source, "late", stream, told.append, kept), told


def test_a_topic_that_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = LateTopic()
    found, told = read_topic(monkeypatch, topic)
    assert found is not None
    assert found.values.to_pylist() == [*topic.values[0], *topic.values[1][1:]]
    assert found.offsets.tolist() == [1, 2, 3, 4, 5]
    assert found.topics.to_pylist() == ["volume"] * 5
    assert found.read_to == TopicPlace(topic="late", id="i", end=[2, 4])
    assert told == ["Kafka has dropped 1 message of 'late' that no revision contains"]


def test_a_topic_that_was_read_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = LateTopic()
    place = TopicPlace(topic="late", id="i", end=[2, 3])
    kept = KeptRevision(1, "late", "", "", "", place, 4)
    found, told = read_topic(monkeypatch, topic, kept)
    assert found is not None
    assert (found.values.to_pylist(), told) == (topic.values[1][3:], [])
    whole = replace(kept, read_to=place.model_copy(update={"end": [2, 4]}))
    assert read_topic(monkeypatch, topic, whole)[0] is None


def test_a_topic_that_has_more_than_a_correction_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read on by the next run: partition 1 first, two messages at a time."""
    topic = LateTopic()
    sizes = [sum(map(len, topic.values[p][b:e])) for p, b, e in ((1, 1, 3), (1, 3, 4), (0, 0, 2))]
    monkeypatch.setattr("spillway.corrections.rows.MOST_BYTES", sum(sizes[:2]) + 60)
    first, told = read_topic(monkeypatch, topic)
    assert first is not None
    assert first.read_to == TopicPlace(topic="late", id="i", end=[0, 4])
    assert first.values.to_pylist() == topic.values[1][1:]
    assert told[-1] == "'late' has more than a correction takes: run it again for what is left"
    kept = KeptRevision(1, "late", "", "", "", first.read_to, 3)
    rest, told = read_topic(monkeypatch, topic, kept)
    assert rest is not None
    assert rest.read_to == TopicPlace(topic="late", id="i", end=[2, 4])
    assert (rest.values.to_pylist(), told) == (topic.values[0], [])
    names = ["i", "other"]
    monkeypatch.setattr(
        LateTopic,
        "topics",
        lambda _, asked: [Topic(name=name, id=names.pop(0), partitions=2) for name in asked],
    )
    with pytest.raises(TopicDeleted, match="'late' was deleted and created again"):
        read_topic(monkeypatch, topic)


def test_a_topic_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "late, partition 1, offset 3: volume: (.|\n)*send the good rows .* to another"
    with pytest.raises(CorrectionRefused, match=told):
        read_topic(monkeypatch, LateTopic(b'{"symbol": "A"}'))
    with pytest.raises(CorrectionRefused, match="'trades' is no stream of the query"):
        read_topic(monkeypatch, LateTopic(), stream="trades")
    source = TopicSource(PLANS, MessageSource("b:1", {}))
    with pytest.raises(CorrectionRefused, match="'stock' is a topic that the query reads"):
        from_topic(source, "stock", None, print, ())


# --- what counts


def test_a_plan_changes_nothing_and_is_right(day: ClosedDay) -> None:
    planned = day.correct(late(), plan=True)
    untouched(day)
    done = day.correct(late())
    assert planned.revision is not None
    assert planned.revision == done.revision
    assert done.revision is not None
    assert (done.revision.rows, done.revision.results) == (1, 1)
    assert (done.revision.reason, done.revision.by) == ("they came late", "ada")
    assert (done.revision.source, done.already) == ("late-1.jsonl", False)
    assert day.correct(late(), plan=True).already


def test_a_plan_beside_what_was_begun(day: ClosedDay, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as dying:
        dying.setattr("spillway.tables.Warehouse.apply_correction", _die)
        with pytest.raises(KeyboardInterrupt):
            day.correct(late(Late("stock", 1)))
    mine = day.correct(late(Late("stock", 1)), plan=True)
    assert (mine.unfinished, mine.revision and mine.revision.results) == (0, 1)
    other = day.correct(late(Late("volume", 1), salt=2), plan=True)
    assert (other.unfinished, other.revision and other.revision.results) == (1, 2)
    assert "1 unfinished revision will be finished first" in corrected_lines(other)[0]
    done = day.correct(late(Late("volume", 1), salt=2))
    assert [each.revision for each in done.finished] == [1]
    assert done.revision is not None
    assert (done.revision.revision, done.revision.results) == (2, 2)


def test_what_was_begun_is_not_finished_without_the_input(
    day: ClosedDay, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying:
        dying.setattr("spillway.tables.Warehouse.apply_correction", _die)
        with pytest.raises(KeyboardInterrupt):
            day.correct(late())
    day.lost = "Kafka holds 'stock' partition 0 from offset 7 on"
    with pytest.raises(CorrectionRefused, match="from offset 7 on"):
        day.correct(None)
    assert {phase for phase, _ in day.results()} == {"run-time"}
    day.lost = ""
    assert [each.results for each in day.correct(None).finished] == [1]


def test_what_cleanup_gave_is_none_of_a_revisions_results(day: ClosedDay) -> None:
    warehouse = day.warehouse
    (given,) = warehouse.files("results")
    place = warehouse.folder("results")
    schema = warehouse.table("results").definition.file_schema
    with place.open(given.path) as file:
        rows = pq.read_table(file)
    record = write_data_file(
        place, "results", data_name(1, "cafecafecafe", 0, 9), schema, [rows.cast(schema)],
        {"session_date": DAY},
    )  # fmt: skip
    assert record is not None
    warehouse.table("results").commit([record], "cleanup", 1)
    warehouse.sessions.append(SessionEvent(session=DAY, event="cleaned", cleanup=len(rows)))
    warehouse.sessions.append(SessionEvent(session=DAY, event="verified", complete=True))
    done = day.correct(late())
    assert done.revision is not None
    assert done.revision.results == 1


def test_of_two_that_finish_a_revision_one_says_so(day: ClosedDay) -> None:
    """Another process finishes this one's revision, and makes the next, before it can say so."""

    class Slow(Warehouse):
        def apply_correction(self, *told: Any) -> None:
            super().apply_correction(*told)
            other = day.correct(late(Late("review", 1), salt=2))
            assert [each.revision for each in other.finished] == [1]

    done = day.correct(late(), Slow(day.root, fsync=False))
    assert done.revision is not None
    assert (done.revision.revision, done.revision.results) == (1, 1)
    events = [e.details for e in day.warehouse.sessions.read() if e.event == "corrected"]
    assert [(each["revision"], each["results"]) for each in events] == [(1, 1), (2, 2)]


def _die(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_verdict_stands_until_a_correction_comes_after_it(day: ClosedDay) -> None:
    warehouse = day.warehouse
    assert warehouse.sessions.history().outcomes()[DAY].complete
    assert day.correct(late()).revision is not None
    outcome = warehouse.sessions.history().outcomes()[DAY]
    assert (outcome.cleaned, outcome.complete) == (True, None)
    assert standing_verdicts(warehouse.sessions.read()) == {}
    # A second one needs no proof in between, and the next verdict stands.
    assert day.correct(late(Late("review", 2), salt=2)).revision is not None
    # A proof that had read the day before the second one came says nothing of it.
    for known in ({}, {"corrections": {"revisions": 1}}):
        warehouse.sessions.append(
            SessionEvent(session=DAY, event="verified", complete=True, details=known)
        )
        assert warehouse.sessions.history().outcomes()[DAY].complete is None
        assert standing_verdicts(warehouse.sessions.read()) == {}
    all_ = {"corrections": {"revisions": 2}}
    warehouse.sessions.append(
        SessionEvent(session=DAY, event="verified", complete=True, details=all_)
    )
    assert warehouse.sessions.history().outcomes()[DAY].complete
    assert standing_verdicts(warehouse.sessions.read())[DAY].complete
    assert warehouse.sessions.history().corrected() == {DAY: 2}
    warehouse.sessions.append(
        SessionEvent(session=DAY, event="verified", complete=False, details=all_)
    )
    assert warehouse.sessions.history().outcomes()[DAY].complete is False
    with pytest.raises(CorrectionRefused, match="is not proved complete"):
        day.correct(late(salt=3))


def test_nothing_is_proved_before_a_correction_is_finished(
    day: ClosedDay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prove() -> None:
        verify(_never, day.warehouse, QUERY, DAY, bootstrap="127.0.0.1:1")

    for step in ("Warehouse.apply_correction", "events.Sessions.append"):
        with monkeypatch.context() as dying:
            dying.setattr(f"spillway.tables.{step}", _die)
            with pytest.raises(KeyboardInterrupt):
                day.correct(late())
        with pytest.raises(NotCleaned, match=f"'spillway correct --session {DAY}'"):
            prove()
    assert day.correct(None).finished[0].results == 1
    with pytest.raises(Exception, match="nothing listens"):
        prove()


def test_a_correction_in_the_midst_of_a_proof(
    day: ClosedDay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof has read which rows there are, and not yet which results."""
    listing = proof.frames_of

    def slow(asked: Any) -> Any:
        day.correct(late())
        return listing(asked)

    monkeypatch.setattr(proof, "frames_of", slow)
    with pytest.raises(NotCleaned, match="was corrected meanwhile"):
        day.prove()


@pytest.mark.parametrize("lie", ["a row is gone", "its results are gone"])
def test_what_a_correction_added_is_proved(day: ClosedDay, lie: str) -> None:
    day.correct(late(Late("stock", 1), Late("stock", 2)))
    report = day.prove()
    assert report.complete
    assert report.details["corrections"] == {"revisions": 1, "rows": 2, "results": 2}
    table = day.warehouse.table("corrections" if lie == "a row is gone" else "results")
    gone = [file for file in table.files() if "correct-" in file.path]
    table.commit([], "somebody", 1, removes=gone, drops=True)
    with pytest.raises(pytest.fail.Exception, match="a key fails"):
        day.prove()


def _never() -> None:
    pytest.fail("Spark was started")


def test_rows_of_corrections_are_not_judged_by_a_watermark() -> None:
    """For the proof, as for the join."""
    plan = compile_streams(load_query("symbol_window"))[0]
    row = Late("stock", 1).value(1)
    timing = Timing(0, {}, {})  # a partition of Kafka's would be looked up, and not be there
    values = pa.array([row], pa.large_binary())
    chunk = Chunk("stock", -1, values, np.array([5]), np.array([0]))
    (found,) = decoded(plan, decoded_schema(plan), timing, [chunk])
    assert (found["kept"].to_pylist(), found["carried"].to_pylist()) == ([True], [False])


def test_numbers_are_taken_once_and_in_order(day: ClosedDay) -> None:
    day.correct(late())
    warehouse = day.warehouse
    for revision in (1, 3):
        with pytest.raises(TableConflict):
            warehouse.keep_correction(DAY, revision, [])
    with pytest.raises(ValueError, match="2 comes first"):
        warehouse.apply_correction(DAY, 3, [])
    warehouse.apply_correction(DAY, 1, [])
    assert warehouse.corrections(DAY).applied == 1


def test_files_of_corrections_are_garbage_when_their_number_is_in(day: ClosedDay) -> None:
    day.correct(late())
    before = day.results()
    for name in ("results", "corrections"):
        (path,) = (f.path for f in day.warehouse.files(name) if "correct-" in f.path)
        place = day.warehouse.folder(name)
        for attempt, revision in (("bad0bad0bad0", 1), ("900d900d900d", 2)):
            folder = path.rpartition("/")[0]
            place.write_new(f"{folder}/correct-{DAY}-{revision}-{attempt}-0.parquet", b"x")
    found = day.warehouse.vacuum(min_age_s=0)
    for name in ("results", "corrections"):
        assert [info.name.split("-")[-2] for info in found[name].delete] == ["bad0bad0bad0"]
        assert [info.name.split("-")[-2] for info in found[name].keep] == ["900d900d900d"]
    assert day.results() == before
    assert day.warehouse.check() == []


def test_lost_commits_of_a_correction_are_found(day: ClosedDay) -> None:
    done = day.correct(late()).revision
    assert done is not None
    more = done.model_copy(update={"revision": 2})
    day.warehouse.sessions.append(
        SessionEvent(session=DAY, event="corrected", details=more.model_dump())
    )
    found = day.warehouse.check()
    assert [each.partition(":")[0] for each in found] == [
        f"{name} has 1 of the 2 corrections of {DAY}" for name in ("corrections", "results")
    ]


@pytest.mark.parametrize("flips", [2, pytest.param(60, marks=pytest.mark.soak)])
def test_a_byte_that_is_wrong(day: ClosedDay, tmp_path: Path, flips: int) -> None:
    """Of the rows that are kept: `correct` and `verify` name the file, or the byte says nothing of
    a row, and then both are right. At the same places each time in the fast lane."""
    seed = 1 if flips < 60 else fresh_seed()
    rng = random.Random(seed)
    corrections = {1: late(), 2: late(salt=2)}
    day.correct(corrections[1])
    (file,) = day.warehouse.files("corrections")
    named = 0
    for number in range(flips):
        root = tmp_path / f"copy{number}"
        shutil.copytree(day.root, root)
        other = replace(day, root=str(root))
        path = Path(other.warehouse.folder("corrections").path(file.path))
        content = bytearray(path.read_bytes())
        at, wrong = rng.randrange(len(content)), rng.randrange(1, 256)
        content[at] ^= wrong
        path.write_bytes(content)
        told: list[str] = []
        try:
            assert other.prove().complete, (seed, at, wrong)
        except DamagedTable as error:
            told.append(str(error))
        try:
            other.correct(corrections[2])
            found = Counter(result for _, result in other.results().elements())
            assert found == day.enlarged(corrections), (seed, at, wrong)
        except DamagedTable as error:
            told.append(str(error))
        assert all(str(path) in each for each in told)
        named += len(told)
        shutil.rmtree(root)
    assert flips < 60 or named > 30


@pytest.mark.parametrize("most_rows", [2, 10**6])
def test_who_follows_results_gets_corrections_once_each(day: ClosedDay, most_rows: int) -> None:
    identity = [f"{s}_{at}" for s in STREAMS for at in ("partition", "offset")]
    follower = Follower(day.warehouse, identity)
    position, got = Position(), []

    def take() -> list[str]:
        nonlocal position
        phases = []
        seen = follower.look()
        while (step := next_step(position, seen, most_rows=most_rows)) is not None:
            rows = [row for part in follower.read(step) for row in part.to_pylist()]
            assert {row["phase"] for row in rows} <= {step.phase}
            got.extend(tuple(row[name] for name in identity) for row in rows)
            position = taken(position, step, position.newest)
            phases.append(step.phase)
        return list(dict.fromkeys(phases))

    assert take() == ["run-time", "cleanup"]
    day.correct(late(Late("stock", 1), Late("stock", 2)))
    assert take() == ["correction"]
    day.correct(late(Late("volume", 1), salt=2))
    day.correct(late(Late("review", 1), Late("stock", 1), salt=3))
    assert take() == ["correction"]
    assert take() == []
    everything = [(*a, *b, *c) for _, (_, a, b, c) in day.results().elements()]
    assert len(everything) > 12
    assert Counter(got) == Counter(everything)


def test_who_follows_results_notices_the_same_epoch_of_another_history(day: ClosedDay) -> None:
    """A warehouse that was restored gives its epochs again, at other times."""
    follower = Follower(day.warehouse, [f"{s}_offset" for s in STREAMS])
    seen = follower.look()
    step = next_step(Position(), seen, most_rows=10**6)
    assert step is not None
    newest = newest_of(pa.concat_tables(follower.read(step)), None)
    assert newest is not None
    known = taken(Position(), step, newest)
    follower.check(known, seen)
    other = newest._replace(committed_us=newest.committed_us + 1)
    with pytest.raises(HistoryChanged, match="is not the table that was followed so far"):
        follower.check(known.model_copy(update={"newest": other}), seen)


def test_revisions_are_in_order_whatever_the_order_of_their_files(
    day: ClosedDay, monkeypatch: pytest.MonkeyPatch
) -> None:
    for salt in (1, 2, 3):
        day.correct(late(salt=salt))
    there = day.warehouse.corrections(DAY)
    assert len(there.paths) == 3
    for paths in permutations(there.paths):
        found = replace(there, paths=paths)
        monkeypatch.setattr(Warehouse, "corrections", lambda *_, found=found: found)
        kept = SessionRevisions(day.warehouse, DAY, 0).kept()
        assert [each.revision for each in kept] == [1, 2, 3]


def test_of_two_words_of_one_revision_the_first_counts() -> None:
    said = [
        Revision(revision=1, source=name, reason="", by="", digest="", rows=3, results=5)
        for name in ("first", "second")
    ]
    events = [SessionEvent(session=DAY, event="corrected", details=dict(each)) for each in said]
    assert revisions_of(events) == {1: said[0]}


# --- for people


def test_what_is_said() -> None:
    own = Revision(
        revision=2, source="stock.jsonl", reason="", by="", digest="", rows=3, results=1_200
    )
    done = Corrected(DAY, (), own, False, 1.25)
    assert corrected_lines(done) == [
        f"{DAY}: revision 2: 1,200 results added, from 3 rows of stock.jsonl, in 1.2 s",
        f"Next: `spillway verify --session {DAY}` proves the day with it",
    ]
    assert "would add 1,200 results" in corrected_lines(replace(done, planned=True))[0]
    assert corrected_lines(replace(done, already=True))[0].endswith("Nothing was done")
    assert "nothing is new" in corrected_lines(replace(done, revision=None))[0]
    assert corrected_lines(replace(done, revision=None, finished=(own,)))[0].startswith(
        f"{DAY}: finished revision 2"
    )


def test_the_command(day: ClosedDay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "spillway.stream.session.spark_on_demand", lambda *_: nullcontext(lambda: None)
    )
    path = str(lines(tmp_path / "stock.jsonl", message("stock")))

    def run(*more: str) -> str:
        root = f"warehouse.root={day.root}"
        words = ["--set", root, "correct", "--session", DAY, *more]
        with day.without_servers():
            found = CliRunner().invoke(app, words, catch_exceptions=False)
        assert found.exit_code == 0
        return found.stdout

    assert "would add 1 result, from 1 row of stock.jsonl" in run(path, "--plan")
    assert f"Next: `spillway verify --session {DAY}`" in run(path, "--reason", "late", "--by", "me")
    told = json.loads(run(path, "--reason", "late", "--json"))
    assert (told["already"], told["finished"]) == (True, [])
    assert (told["revision"]["by"], told["revision"]["results"]) == ("me", 1)
    assert "nothing is new" in run()


def test_whether_a_session_can_be_corrected_is_said_before_what_is_wrong_with_its_rows(
    day: ClosedDay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "spillway.stream.session.spark_on_demand", lambda *_: nullcontext(lambda: None)
    )
    path = tmp_path / "stock.jsonl"
    path.write_text("no row\n")
    for session, told in ((NEXT, f"{NEXT} is open: send the rows"), (DAY, "line 1")):
        words = ["--set", f"warehouse.root={day.root}", "correct", "--session", session]
        with day.without_servers():
            found = CliRunner().invoke(app, [*words, str(path), "--reason", "late"])
        assert told in str(found.exception)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("rows.jsonl", "--topic", "t", "--reason", "x"), "give one of them"),
        (("rows.jsonl",), "--reason is needed"),
        (("--topic", "t", "--reason", " "), "--reason is needed"),
    ],
)
def test_wrong_usage(more: tuple[str, ...], told: str) -> None:
    found = CliRunner().invoke(app, ["correct", "--session", DAY, *more], env={"COLUMNS": "200"})
    assert found.exit_code == 2
    assert told in found.output


def test_a_corrected_day_whose_loss_is_accepted_has_a_verdict(day: ClosedDay) -> None:
    day.correct(late())
    added = sum(n for (phase, _), n in day.results().items() if phase == "correction")
    assert added
    lost = LostRange(topic="stock", partition=0, begin=0, end=1)
    loss = AcceptedLoss(ranges=[lost], reason="gone", by="ada")
    sessions = day.warehouse.sessions
    sessions.append(
        SessionEvent(session=DAY, event="accepted", details={"loss": loss.model_dump()})
    )
    report = day.prove()
    assert (report.complete, report.cleanup) == (False, 0)
    assert report.details["corrections"]["results"] == added
    outcome = sessions.history().outcomes()[DAY]
    assert (outcome.complete, outcome.accepted) == (False, True)
    assert standing_verdicts(sessions.read())[DAY].settles
