"""How a warehouse's journal begins, and what must be as it was on every later start."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from spillway.decode import tree_spec
from spillway.engine.groups import GroupMap
from spillway.engine.join.results import result_schema
from spillway.protocol.queries import QueryChanged
from spillway.protocol.state import JournalState, fold
from spillway.stream.genesis import (
    StartRefused,
    carrying,
    check_carry,
    check_same,
    first_entry,
    shared_out,
    state_of_query,
)
from spillway.tables import Warehouse, WrongTable
from spillway_schemas.hash_space import join_of
from spillway_schemas.journal import Genesis, Offsets, Topic
from spillway_schemas.query import SHIPPED_QUERIES, Query, load_query
from spillway_schemas.settings import Settings, load_settings
from tests.carrying import Carrying
from tests.protocol_entries import DAY, NEXT, TOPICS, claim, ends, epoch, genesis

QUERY = load_query("symbol")
NOON_MS = 1_767_632_400_000
"""2026-01-05T17:00:00Z, noon in New York on the first trading day of that week."""


@dataclass
class Kafka:
    """A cluster with the topics of the entries; notes what it is asked."""

    id: str = "c"
    topics_now: tuple[Topic, ...] = TOPICS
    first: Offsets = field(default_factory=lambda: ends(0, 0, 0))
    asked: list[Any] = field(default_factory=list)

    def cluster_id(self) -> str:
        return self.id

    def topics(self, names: list[str]) -> list[Topic]:
        assert names == ["a", "b"]
        return list(self.topics_now)

    def beginning_offsets(self, names: list[str]) -> Offsets:
        assert names == ["a", "b"]
        return self.first

    def end_offsets(self, names: list[str]) -> Offsets:
        assert names == ["a", "b"]
        return ends(7, 8, 9)

    def offsets_for_time(self, names: list[str], at_ms: int) -> Offsets:
        assert names == ["a", "b"]
        self.asked.append(at_ms)
        return ends(4, 5, 6)


def state() -> JournalState:
    """A journal that ends at 4, 5 and 6."""
    found: JournalState | None = None
    for entry in (genesis(), claim(1, 1), epoch(2, 0, ends(4, 5, 6))):
        found = fold(found, entry)
    assert found is not None
    return found


def by(fingerprint: str) -> Query:
    """A query of which no more is asked than this."""
    return cast("Query", SimpleNamespace(fingerprint=fingerprint, topics=("a", "b")))


def checked(kafka: Kafka, query: str = "q") -> list[Topic]:
    return check_same(state(), by(query), kafka, ["b", "a", "b"])  # type: ignore[arg-type]


def refused(kafka: Kafka, query: str = "q") -> str:
    with pytest.raises((StartRefused, QueryChanged)) as error:
        checked(kafka, query)
    return str(error.value)


def test_the_same_query_and_topics_may_go_on() -> None:
    assert checked(Kafka()) == list(TOPICS)


def test_rows_may_be_gone_up_to_where_the_journal_ends() -> None:
    assert checked(Kafka(first=ends(4, 5, 6))) == list(TOPICS)


@pytest.mark.parametrize(
    ("first", "place", "end", "gone"),
    [(ends(5, 0, 0), "a/0", 4, 1), (ends(0, 9, 0), "a/1", 5, 4), (ends(0, 0, 8), "b/0", 6, 2)],
)
def test_rows_that_were_never_read_must_be_there(
    first: Offsets, place: str, end: int, gone: int
) -> None:
    assert refused(Kafka(first=first)) == (
        f"Kafka no longer holds {place} from offset {end}, where the journal ends: the first "
        f"offset is {end + gone}. {gone} offsets are gone (retention too short, or the stream was "
        "down too long). Rows that were never read cannot be joined. Raise the topic's retention. "
        "Where nobody has these rows any more, go on without them: `spillway accept-loss --session "
        f"{DAY} --reason ...`, and start again"
    )


def test_what_is_accepted_as_lost_need_not_be_there() -> None:
    kafka = Kafka(first=ends(7, 0, 8))
    same = partial(check_same, query=by("q"), cluster=kafka, topics=["a", "b"])
    with pytest.raises(StartRefused, match="b/0 from offset 6"):
        same(state(), lost_to=ends(7, 0, 0))
    with pytest.raises(StartRefused, match=r"a/0 from offset 6,.* is 7\. 1 offsets are gone"):
        same(state(), lost_to=ends(6, 0, 8))  # more went since
    assert same(state(), lost_to=ends(7, 0, 8)) == list(TOPICS)
    assert same(replace(state(), lost_to=ends(7, 0, 8))) == list(TOPICS)


def test_a_changed_query_needs_what_is_left_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that the query before did not read begins where the changed one says."""
    monkeypatch.setattr("spillway.stream.genesis.goes_on_by_another", lambda *_: True)
    kafka = Kafka(topics_now=TOPICS, first={"a": [7, 0], "b": [8]})
    end = {topic: at for topic, at in state().end.items() if topic == "a"}
    before = replace(state(), end=end, topics=(TOPICS[0],))
    same = partial(check_same, before, by("new"), kafka, ["a", "b"])
    with pytest.raises(StartRefused, match=r"a/0 from offset 4,.* is 7\. 3 offsets are gone"):
        same()
    # Given by the query before, of a topic that is not read any more, too.
    assert same({"a": [7, 0], "z": [99]}) == list(TOPICS)


def test_a_partition_that_the_journal_does_not_know_begins_at_0() -> None:
    wider = Topic(name="b", id="id-b", partitions=2)
    kafka = Kafka(topics_now=(TOPICS[0], wider), first={"a": [0, 0], "b": [0, 0]})
    assert checked(kafka) == [TOPICS[0], wider]
    kafka.first = {"a": [0, 0], "b": [0, 1]}
    assert "no longer holds b/1 from offset 0" in refused(kafka)
    kafka.first = {"a": [0, 0], "b": [0, 0], "c": [1]}
    assert "no longer holds c/0 from offset 0" in refused(kafka)


def test_another_query_is_refused() -> None:
    assert refused(Kafka(), "0123456789abcdef") == (
        "the query has changed in mid-session: 2026-01-05 has begun by the query as it was: 15 "
        "rows of it are read.\n  fingerprint: q -> 0123456789abcdef\nNothing was written. Either "
        "go back to the query as it was, or end the session by it, and the next one takes the "
        "changed query up:\n  spillway seal --session 2026-01-05\n  spillway stream --until-sealed "
        "2026-01-05 --as-begun"
    )


@pytest.mark.parametrize("before", [None, "0123456789abcdef", QUERY.fingerprint])
def test_what_a_stream_would_find(tmp_path: Path, before: str | None) -> None:
    """Nothing, the journal of its own query, or one that it is refused."""
    root = str(tmp_path / "w")
    of_query = Warehouse(root, result_schema(tree_spec(QUERY)), fsync=False)
    if before is None:
        assert state_of_query(of_query, QUERY) is None
        return
    of_query.journal.append(genesis(query=before, written_at="2026-01-05T14:00:00Z"))
    if before != QUERY.fingerprint:
        with pytest.raises(QueryChanged) as error:
            state_of_query(of_query, QUERY)
        assert "another query's: none of its topics is one of the query's" in str(error.value)
        assert f"fingerprint: 0123456789abcdef -> {QUERY.fingerprint}" in str(error.value)
        return
    found = state_of_query(of_query, QUERY)
    assert found is not None
    assert found.genesis.query == before


def test_results_of_another_query_are_refused(tmp_path: Path) -> None:
    root = str(tmp_path / "w")
    other = Warehouse(root, pa.schema([pa.field("session_date", pa.string())]), fsync=False)
    at = "2026-01-05T14:00:00Z"
    other.journal.append(genesis(query=QUERY.fingerprint, written_at=at))
    other.journal.append(claim(1, 1, written_at=at))
    other.journal.append(epoch(2, 0, ends(0, 0, 0), started_at=at, written_at=at))
    assert other.files("results") == []
    with pytest.raises(WrongTable, match="results lacks "):
        state_of_query(other, QUERY)


def test_another_cluster_is_refused() -> None:
    assert refused(Kafka(id="d")) == (
        "Kafka cluster d is not the one that the journal's offsets belong to (c). Check "
        "kafka.bootstrap_servers, or name a new warehouse.root."
    )


def test_a_topic_that_was_made_anew_is_refused() -> None:
    anew = Topic(name="b", id="other", partitions=1)
    assert refused(Kafka(topics_now=(TOPICS[0], anew))) == (
        "The topics no longer match the journal: topic b was deleted and created again (its id "
        "was id-b, now other). Its offsets mean other rows now. Nothing was written. Name a new "
        "warehouse.root to begin again."
    )


def begun(
    root: Path, kafka: Kafka, session: str | None = DAY, now_ms: int = NOON_MS, **more: Any
) -> Genesis:
    query = {name: more.pop(name) for name in ("joins", "streams") if name in more}
    flags = {"warehouse.root": str(root), "session.boundary": "command"}
    flags |= {name.replace("__", "."): value for name, value in more.items()}
    settings = load_settings(None, flags, environ={})[0]
    return first_entry(
        settings,
        "q",
        ["b", "a", "b"],
        kafka,  # type: ignore[arg-type]
        session=session,
        now_ms=now_ms,
        **query,
    )


def test_a_journal_begins_with_what_it_is_of(tmp_path: Path) -> None:
    kafka = Kafka()
    entry = begun(tmp_path, kafka, state__groups="8", state__slots="3", stream__start="earliest")
    assert len(entry.warehouse_id) == 12
    assert begun(tmp_path, kafka).warehouse_id != entry.warehouse_id
    assert entry == Genesis(
        warehouse_id=entry.warehouse_id,
        cluster_id="c",
        topics=list(TOPICS),
        query="q",
        session=DAY,
        start=ends(0, 0, 0),
        start_rule="earliest",
        inputs=3,
        groups=GroupMap.initial(8, 3, ()).assignment(),
        written_at="2026-01-05T17:00:00.000+00:00",
    )


def test_shares_divide_the_first_groups(tmp_path: Path) -> None:
    more = {"state__groups": "8", "state__slots": "2"}
    entry = begun(tmp_path, Kafka(), state__shares="3,1", **more)
    assert entry.groups == GroupMap.initial(8, 2, (3.0, 1.0)).assignment()
    with pytest.raises(StartRefused, match=r"^state\.shares = '3,1,1': "):
        begun(tmp_path, Kafka(), state__shares="3,1,1", **more)


FIVE_WAY = {"abc": 1, "abcd": 2, "abcde": -1}


def places(entry: Genesis) -> list[list[int]]:
    """Of each join the slots that have its groups."""
    found: list[set[int]] = [set() for _ in entry.joins]
    for group, slot in entry.groups:
        found[join_of(group, len(entry.joins))].add(slot)
    return [sorted(each) for each in found]


def test_joins_begin_on_the_slots_of_their_sub_plan(tmp_path: Path) -> None:
    more = {"state__groups": "8", "state__slots": "2", "joins": FIVE_WAY, "streams": (3, 1, 1)}
    everywhere = begun(tmp_path, Kafka(), **more)
    assert places(everywhere) == [[0, 1]] * 3
    assert everywhere.groups == shared_out(GroupMap.initial(8, 2), 3)
    more["plan__distribution"] = "balanced-network-aware"
    assert places(begun(tmp_path, Kafka(), **more)) == [[0], [0], [1]]
    more |= {"plan__most_load": "9", "plan__rows": "abc=0.5,abcd=9"}
    assert places(begun(tmp_path, Kafka(), **more)) == [[0], [1], [1]]
    more["plan__rows"] = "abd=0.5"
    with pytest.raises(StartRefused, match="no join 'abd'; it has abc, abcd, abcde"):
        begun(tmp_path, Kafka(), **more)


def test_joins_begin_on_slots_that_a_seed_draws(tmp_path: Path) -> None:
    more = {"state__groups": "8", "state__slots": "3", "joins": FIVE_WAY, "streams": (3, 1, 1)}
    more["plan__distribution"] = "random"
    drawn = [places(begun(tmp_path, Kafka(), plan__seed=str(n), **more)) for n in (0, 0, 1, 2, 3)]
    assert drawn[0] == drawn[1]
    assert len(set(map(str, drawn))) > 1
    assert all(sorted(each) == [[0], [1], [2]] for each in drawn)


def test_without_a_session_it_is_the_calendars(tmp_path: Path) -> None:
    assert begun(tmp_path, Kafka(), session=None).session == DAY
    saturday = NOON_MS - 2 * 86_400_000
    assert begun(tmp_path, Kafka(), session=None, now_ms=saturday).session == DAY


@pytest.mark.parametrize(
    ("rule", "start", "told", "asked"),
    [
        ("earliest", ends(0, 0, 0), "earliest", []),
        ("latest", ends(7, 8, 9), "latest", []),
        (
            "previous-close",
            ends(4, 5, 6),
            "previous-close 2026-01-02T21:05:00.000+00:00",
            [1_767_387_900_000],
        ),
        (
            "2026-01-05T09:30:00-05:00",
            ends(4, 5, 6),
            "2026-01-05T09:30:00-05:00 2026-01-05T14:30:00.000+00:00",
            [1_767_623_400_000],
        ),
    ],
)
def test_where_it_begins(
    rule: str, start: Offsets, told: str, asked: list[int], tmp_path: Path
) -> None:
    kafka = Kafka()
    more = {"stream__start": rule, "session__grace_s": "300"}
    entry = begun(tmp_path, kafka, **more)
    assert (entry.start, entry.start_rule, kafka.asked) == (start, told, asked)


@pytest.mark.parametrize(("early", "told"), [(0, "previous-close 2"), (1, "earliest (2")])
def test_before_the_previous_close_all_rows_are_the_days(
    early: int, told: str, tmp_path: Path
) -> None:
    kafka = Kafka()
    more = {"stream__start": "previous-close", "session__grace_s": "300"}
    entry = begun(tmp_path, kafka, now_ms=1_767_387_900_000 - early, **more)
    assert entry.start_rule.startswith(told)
    if early:
        assert entry.start == ends(0, 0, 0)
        assert entry.start_rule == "earliest (2026-01-02T21:05:00.000+00:00 is to come)"


def test_a_day_that_would_never_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartRefused) as error:
        begun(tmp_path, Kafka(), session="2026-01-04", session__boundary="calendar")
    name = load_settings(None, {}, environ={})[0].session.calendar
    assert str(error.value) == (
        f"2026-01-04 is not a trading day of {name}, and session.boundary = 'calendar' ends "
        "trading days only. Begin with --session 2026-01-05, the next one, or set "
        "session.boundary to 'command'"
    )
    assert begun(tmp_path, Kafka(), session__boundary="calendar").session == DAY


def carry(on: bool) -> Settings:
    return load_settings(None, {"session.carry": str(on).lower()}, environ={})[0]


def test_what_expires_can_be_carried_over(tmp_path: Path) -> None:
    windowed = load_query("symbol_window")
    text = (SHIPPED_QUERIES / "symbol_window.toml").read_text()
    (tmp_path / "q.toml").write_text(re.sub("(?m)^idle_after.*", "", text))
    with pytest.raises(StartRefused, match="needs `idle_after` in the query"):
        carrying(carry(True), load_query(str(tmp_path / "q.toml")))
    assert carrying(carry(True), windowed)
    assert not carrying(carry(False), windowed)
    assert not carrying(carry(False), QUERY)
    with pytest.raises(StartRefused, match="needs a window on every join, and the query has none"):
        carrying(carry(True), QUERY)


def test_a_tree_with_a_join_without_a_window_carries_nothing() -> None:
    five_way = load_query("five_way")
    with pytest.raises(StartRefused, match=f"{', '.join(five_way.joins)} have none: rows that"):
        carrying(carry(True), five_way)


def test_a_warehouse_keeps_whether_it_carries() -> None:
    check_carry(carry(False), state())
    with pytest.raises(StartRefused, match=r"began with session\.carry = false, and it is true"):
        check_carry(carry(True), state())


def test_what_is_to_be_carried_must_be_there() -> None:
    """Rows up to epoch 2 had expired: 12 of each partition."""
    day = Carrying()
    day.seals()
    kafka = Kafka(first=ends(12, 12, 12))
    check_same(day.state, by("q"), kafka, ["a", "b"])  # type: ignore[arg-type]
    kafka.first = ends(12, 13, 12)
    with pytest.raises(StartRefused, match=f"holds a/1 from offset 12: .*had not .* when {NEXT}"):
        check_same(day.state, by("q"), kafka, ["a", "b"])  # type: ignore[arg-type]
    check_same(day.state, by("q"), kafka, ["a", "b"], kafka.first)  # type: ignore[arg-type]
    day.epoch(ends(24, 24, 24), session=NEXT)
    check_same(day.state, by("q"), kafka, ["a", "b"])  # type: ignore[arg-type]
