"""The one data function: what it says is what the journal and the tables hold."""

from __future__ import annotations

import io
import socket
import time
from datetime import timedelta

import numpy as np
import pytest
from rich.console import Console

from spillway.live.views import stream
from spillway.protocol.state import JournalBroken, replay
from spillway.readmodel import cache
from spillway.readmodel.cache import ReadCache
from spillway.readmodel.model import ReadModel
from spillway.readmodel.tally import (
    MOST_POINTS,
    RECENT_EPOCHS,
    delay_quantile_ms,
    thinned,
    with_room,
)
from spillway.report.ends import held_offsets
from spillway.report.model import Status
from spillway.report.status import MOST_REASONS, OTHER, status
from spillway.report.terminal import render
from spillway.tables import NothingYet, SessionEvent, Warehouse
from spillway.tables.events import SessionHistory
from spillway_schemas.journal import DELAY_EDGES_MS
from spillway_schemas.settings import load_settings
from tests.report_journal import (
    BEGAN,
    DAY,
    NEXT,
    TOPICS,
    add_quarantine,
    fill_journal,
    make_day,
    model_of,
    open_warehouse,
    verdict,
    withdraw_a_seal,
)


@pytest.fixture(autouse=True)
def own_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))


@pytest.fixture
def settings(tmp_path):
    return load_settings(overrides={"warehouse.root": str(tmp_path / "w")}, environ={})[0]


@pytest.fixture
def warehouse(settings):
    return open_warehouse(settings.warehouse.root)


def tallied(entries):
    return model_of(entries)


def test_the_made_up_day_is_a_valid_journal():
    made = make_day(60, seal_after=40)
    state = replay(made.entries)
    assert state.session.date == NEXT
    assert state.sealed[DAY].results == made.results[DAY]


def test_figures_are_the_journals(settings, warehouse):
    made = make_day(60, seal_after=40)
    fill_journal(warehouse, made.entries)
    now = made.now() + timedelta(seconds=3)
    found = status(warehouse, settings, now, None)
    assert (found.session, found.epoch, found.term, found.driver) == (NEXT, 59, 1, "host/1")
    assert found.entries == len(made.entries)
    assert found.last_epoch_age_s == 3.0
    assert found.last_claim_age_s == round((now - BEGAN).total_seconds(), 1)
    [after, day] = found.sessions
    assert (after.session, after.stage) == (NEXT, "open")
    assert (day.session, day.stage) == (DAY, "sealed")
    for session in (after, day):
        assert session.rows_in == {t: made.rows[session.session, t] for t in TOPICS}
        assert session.results_run_time == made.results[session.session]
        assert session.generations == made.cuts[session.session]
    assert day.rejected + after.rejected == made.rejected
    assert (day.spills, day.spilled_bytes) == (made.spills, made.spilled_bytes)
    assert 0 < made.overflows == day.overflows < made.spills
    assert day.spills > 2
    assert day.flushed_bytes == made.flushed_bytes > 0
    assert day.returned_bytes == made.returned_bytes > 0
    assert after.returned_bytes == 0
    assert after.spills == 0
    assert day.peak_state_bytes == made.peak
    assert day.cleanup_ranges == 2
    assert day.results_cleanup is None
    assert {t.topic: t.rows for t in found.topics} == after.rows_in
    last = made.last.slots
    assert [s.state_bytes for s in found.slots] == [s.state_bytes for s in last]
    assert [s.rows for s in found.slots] == [s.rows for s in last]
    assert found.threshold == settings.spill.threshold


def test_a_withdrawn_seal_leaves_an_open_day(settings, warehouse):
    made = withdraw_a_seal(make_day(16))
    assert [s.date for s in replay(made.entries).sessions] == [DAY]
    ending = tallied(made.entries[: -16 + 11]).tally
    assert sorted(ending.sessions) == [DAY, NEXT]
    assert (ending.sessions[DAY].end is not None, ending.sessions[DAY].seal_by) == (True, "alice")
    fill_journal(warehouse, made.entries)
    found = status(warehouse, settings, made.now(), None)
    [day] = found.sessions
    assert (day.session, day.stage, day.seal_by, day.seal_reason) == (DAY, "open", "", "")
    assert day.rows_in == {t: made.rows[DAY, t] for t in TOPICS}
    assert [(a.what, a.by, a.reason) for a in day.seal_answers] == [
        ("withdrawn", "bob", "too early"),
        ("not withdrawn", "bob", f"no seal of {DAY} is pending"),
    ]
    assert day.seal_answers[0].at == made.entries[-16 + 12].written_at


def test_rows_beyond_the_end_belong_to_the_next_session_before_the_seal_is_complete():
    made = make_day(41, seal_after=40, partitions=4)
    model = tallied(made.entries)
    assert model.session == DAY
    assert model.tally.sessions[NEXT].rows == {t: n for (s, t), n in made.rows.items() if s == NEXT}
    assert sum(model.tally.sessions[NEXT].rows.values()) > 0


def test_the_peak_is_the_fullest_slot_for_its_budget():
    made = make_day(12)
    entries = []
    for entry in made.entries:
        if entry.kind == "epoch":
            sizes = {"budget_bytes": 1 << 30, "state_bytes": 5 << 20}
            small = {"budget_bytes": 4 << 20, "state_bytes": (entry.epoch % 3) << 20}
            slots = [entry.slots[0].model_copy(update=sizes)]
            slots.append(entry.slots[1].model_copy(update=small))
            entry = entry.model_copy(update={"slots": slots})
        entries.append(entry)
    session = tallied(entries).tally.sessions[DAY]
    assert (session.peak_state_bytes, session.budget_bytes) == (2 << 20, 4 << 20)


@pytest.mark.parametrize(
    ("events", "stage", "by_cleanup"),
    [
        ([], "sealed", None),
        ([SessionEvent(session=DAY, event="cleaned", cleanup=7, seconds=1.5)], "cleaned", 7),
    ],
)
def test_stages_of_a_sealed_session(settings, warehouse, events, stage, by_cleanup):
    made = make_day(60, seal_after=40)
    fill_journal(warehouse, made.entries)
    for event in events:
        warehouse.sessions.append(event)
    day = status(warehouse, settings, made.now(), None).session_of(DAY)
    assert (day.stage, day.results_cleanup) == (stage, by_cleanup)


def test_a_cleanup_under_way_is_seen(settings, warehouse):
    made = make_day(60, seal_after=40)
    fill_journal(warehouse, made.entries)
    warehouse.apply_cleanup(DAY, {0: []})
    day = status(warehouse, settings, made.now(), None).session_of(DAY)
    assert (day.stage, day.cleanup_ranges_done, day.cleanup_ranges) == ("cleaning", 1, 2)


def test_an_end_that_is_fixed_but_not_reached(settings, warehouse):
    made = make_day(41, seal_after=40)
    fill_journal(warehouse, made.entries)
    found = status(warehouse, settings, made.now(), None)
    assert [(s.session, s.stage) for s in found.sessions] == [(NEXT, "next"), (DAY, "ending")]
    assert found.session == DAY


def test_the_last_verdict_counts(settings, warehouse):
    made = make_day(5)
    fill_journal(warehouse, made.entries)
    assert status(warehouse, settings, made.now(), None).sessions[0].verdict is None
    warehouse.sessions.append(verdict(False, missing=3))
    found = status(warehouse, settings, made.now(), None).sessions[0].verdict
    assert (found.complete, found.missing) == (False, 3)
    warehouse.sessions.append(verdict(True))
    assert status(warehouse, settings, made.now(), None).sessions[0].verdict.complete


CLEANED = SessionEvent(session=DAY, event="cleaned", cleanup=7, seconds=1.5)


@pytest.mark.parametrize(
    ("events", "left_out", "unverified"),
    [
        ([], 0, 0),
        ([CLEANED], 1, 1),
        ([CLEANED, verdict(True)], 1, 0),
        ([verdict(True), CLEANED], 1, 0),
        ([CLEANED, verdict(False, missing=3)], 0, 0),
        ([CLEANED, verdict(False, missing=3), verdict(True)], 1, 0),
        ([CLEANED, verdict(True), verdict(False, missing=3)], 0, 0),
        ([verdict(True)], 0, 0),
    ],
)
def test_old_sessions_are_left_out_when_nothing_of_them_is_missing(
    settings, warehouse, events, left_out, unverified
):
    """Kills: one that is not cleaned, or of which results are missing, and nobody sees it."""
    made = make_day(60, seal_after=40)
    fill_journal(warehouse, made.entries)
    for event in events:
        warehouse.sessions.append(event)
    whole = status(warehouse, settings, made.now(), None)
    assert (whole.sessions_left_out, whole.unverified_left_out) == (0, 0)
    assert [each.session for each in whole.sessions] == [NEXT, DAY]
    assert status(warehouse, settings, made.now(), None, newest=2) == whole
    found = status(warehouse, settings, made.now(), None, newest=1)
    assert (found.sessions_left_out, found.unverified_left_out) == (left_out, unverified)
    assert found.sessions == whole.sessions[: 2 - left_out]
    told = {"sessions", "sessions_left_out", "unverified_left_out"}
    assert found.model_dump(exclude=told) == whole.model_dump(exclude=told)


def shown(found: Status) -> str:
    out = Console(file=io.StringIO(), width=120)
    out.print(render(found, out), highlight=False)
    return out.file.getvalue()


def test_lag_is_known_only_when_every_topic_answers(settings, warehouse):
    made = make_day(5)
    fill_journal(warehouse, made.entries)
    ahead = {topic: [end + 5 for end in ends] for topic, ends in made.end.items()}
    found = status(warehouse, settings, made.now(), ahead)
    assert found.lag_rows == 5 * 2 * 3
    assert [t.lag_rows for t in found.topics] == [10, 10, 10]
    del ahead["review"]
    found = status(warehouse, settings, made.now(), ahead)
    assert [t.lag_rows for t in found.topics] == [10, 10, None]
    assert found.lag_rows is None
    assert "unknown: Kafka has no topic review" in shown(found)
    found = status(warehouse, settings, made.now(), None)
    assert found.lag_rows is None
    assert "unknown: Kafka does not answer, or lacks the topics" in shown(found)
    # A topic made anew, or offsets older than the journal's: not behind.
    found = status(warehouse, settings, made.now(), {t: [0, 0, 9] for t in TOPICS})
    assert found.lag_rows == 3 * 9


def test_a_broker_that_is_down_costs_no_time(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings, _ = load_settings(
        overrides={"kafka.bootstrap_servers": f"127.0.0.1:{port}"}, environ={}
    )
    began = time.monotonic()
    assert held_offsets(settings, ["stock"], "c") is None
    assert time.monotonic() - began < 1.0


def test_reasons_are_counted_once_per_file_and_the_rare_ones_together(settings, warehouse):
    made = make_day(5)
    fill_journal(warehouse, made.entries)
    add_quarantine(warehouse, 0, ["not JSON"] * 5 + ["symbol: missing"])
    memory = ReadCache()
    found = status(warehouse, settings, made.now(), None, memory=memory)
    assert found.quarantine == {"not JSON": 5, "symbol: missing": 1}
    many = [f"field {k} is wrong" for k in range(MOST_REASONS + 10)]
    add_quarantine(warehouse, 1, ["not JSON", *many])
    for _ in range(2):
        found = status(warehouse, settings, made.now(), None, memory=memory)
        assert next(iter(found.quarantine.items())) == ("not JSON", 6)
        assert sum(found.quarantine.values()) == 7 + len(many)
        assert found.quarantine[OTHER] > 0


def test_reasons_that_differ_only_in_the_place_are_one(settings, warehouse):
    made = make_day(5)
    fill_journal(warehouse, made.entries)
    where = [f"not JSON: EOF at line 1 column {k}" for k in range(9)]
    add_quarantine(warehouse, 0, [*where, "not UTF-8 (byte 11)", "not UTF-8 (byte 2)"])
    found = status(warehouse, settings, made.now(), None, memory=ReadCache())
    assert found.quarantine == {"not JSON: EOF": 9, "not UTF-8": 2}


def test_a_second_look_reads_only_what_is_new_and_says_the_same(settings, warehouse):
    made = make_day(80, seal_after=70)
    memory = ReadCache()
    for upto in (1, 3, 30, 60, len(made.entries)):
        fill_journal(warehouse, made.entries[:upto])
        now = made.now()
        step = status(warehouse, settings, now, None, memory=memory)
        whole = status(warehouse, settings, now, None, memory=ReadCache())
        assert step == whole
    assert memory.model == tallied(made.entries)


def test_what_is_remembered_on_disk_is_used_and_checked(settings, warehouse, monkeypatch):
    made = make_day(100)
    fill_journal(warehouse, made.entries)
    first = status(warehouse, settings, made.now(), None)
    place = warehouse.place.path()
    assert cache.load(place).model.state.n == made.last.n
    read = []
    original = ReadModel.add
    monkeypatch.setattr(
        ReadModel, "add", lambda self, text, e: (read.append(e.n), original(self, text, e))
    )
    assert status(warehouse, settings, made.now(), None) == first
    assert read == []
    # Another journal at the same place: nothing of the old one may be used.
    path = cache.memory_file(place)
    kept = path.read_text().partition("\n")[2].replace(cache.load(place).model.entry, "0" * 64)
    path.write_bytes(cache.with_digest(kept.encode()))
    assert status(warehouse, settings, made.now(), None) == first
    assert len(read) == len(made.entries) - 1


@pytest.mark.parametrize("content", ["", "{", '{"version": 0}', "[]", '{"tally": 3}'])
def test_a_damaged_memory_is_no_harm(settings, warehouse, content):
    made = make_day(10)
    fill_journal(warehouse, made.entries)
    path = cache.memory_file(warehouse.place.path())
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert status(warehouse, settings, made.now(), None).epoch == 9


def test_a_shorter_journal_is_read_again(settings, warehouse, tmp_path):
    made = make_day(60)
    fill_journal(warehouse, made.entries)
    memory = ReadCache()
    status(warehouse, settings, made.now(), None, memory=memory)
    other = open_warehouse(str(tmp_path / "other"))
    again = make_day(20, seed=5)
    fill_journal(other, again.entries)
    found = status(other, settings, again.now(), None, memory=memory)
    assert found.epoch == 19
    assert found.sessions[0].rows_in == {t: again.rows[DAY, t] for t in TOPICS}


def test_rates_fall_when_the_stream_is_silent(settings, warehouse):
    made = make_day(40)
    fill_journal(warehouse, made.entries)
    busy = status(warehouse, settings, made.now(), None)
    later = status(warehouse, settings, made.now() + timedelta(seconds=30), None)
    silent = status(warehouse, settings, made.now() + timedelta(minutes=5), None)
    rows = sum(p.rows for e in made.entries if e.kind == "epoch" for p in e.read)
    seconds = 40 * 2.0
    assert busy.rows_per_s == pytest.approx(rows / seconds, rel=0.25)
    assert 0 < later.rows_per_s < busy.rows_per_s
    assert (silent.rows_per_s, silent.results_per_s) == (0, 0)


def test_the_delay_is_not_the_session_s_before(settings, warehouse):
    """The head of `status` is the open session's."""
    made = make_day(40, seal_after=20)
    at_seal = next(i for i, e in enumerate(made.entries) if getattr(e, "sealed", None))
    fill_journal(warehouse, made.entries[: at_seal + 1])
    sealed = status(warehouse, settings, made.now(), None)
    assert sealed.session_of(DAY).delay_p50_ms is not None
    assert (sealed.session, sealed.delay_p50_ms, sealed.delay_p99_ms) == (NEXT, None, None)
    fill_journal(warehouse, made.entries)
    assert status(warehouse, settings, made.now(), None).delay_p50_ms is not None


def test_an_empty_journal_says_what_to_do(settings, warehouse):
    with pytest.raises(NothingYet, match="start `spillway stream`"):
        status(warehouse, settings, make_day(1).now(), None)


def test_a_journal_without_epochs(settings, warehouse):
    made = make_day(1)
    fill_journal(warehouse, made.entries[:2])
    found = status(warehouse, settings, made.now(), None)
    assert (found.epoch, found.last_epoch_at, found.delay_p50_ms) == (-1, None, None)
    assert found.last_claim_age_s == round((made.now() - BEGAN).total_seconds(), 1)
    assert found.sessions[0].stage == "open"


def test_status_is_json_and_comes_back(settings, warehouse):
    made = make_day(60, seal_after=40)
    fill_journal(warehouse, made.entries)
    found = status(warehouse, settings, made.now(), None, detail_session=DAY)
    assert Status.model_validate_json(found.model_dump_json()) == found


def test_a_reader_opens_the_warehouse_without_its_query(settings, warehouse):
    made = make_day(5)
    fill_journal(warehouse, made.entries)
    reader = Warehouse(settings.warehouse.root, fsync=False)
    assert status(reader, settings, made.now(), None).epoch == 4


def test_entries_out_of_order_are_refused():
    made = make_day(3)
    model = tallied(made.entries[:2])
    with pytest.raises(JournalBroken, match=r"entry 3 \(epoch\) follows entry 1"):
        model.add("", made.entries[3])


@pytest.mark.parametrize("quantile", [0.0001, 0.1, 0.5, 0.9, 0.99, 1.0])
def test_delays_lie_within_their_bucket(quantile):
    rng = np.random.default_rng(3)
    delays = rng.lognormal(6, 1.5, 5_000)
    edges = np.array(DELAY_EDGES_MS)
    histogram = np.bincount(np.searchsorted(edges, delays), minlength=len(edges) + 1).tolist()
    found = delay_quantile_ms(histogram, quantile)
    true = np.quantile(delays, quantile, method="inverted_cdf")
    bucket = int(np.searchsorted(edges, true))
    if bucket == len(edges):
        assert found == edges[-1]
    else:
        low = edges[bucket - 1] if bucket else 0
        assert low <= found <= edges[bucket]


def test_delays_without_samples_and_beyond_the_last_edge():
    assert delay_quantile_ms([], 0.5) is None
    assert delay_quantile_ms([0] * (len(DELAY_EDGES_MS) + 1), 0.5) is None
    beyond = [0] * len(DELAY_EDGES_MS) + [4]
    assert delay_quantile_ms(beyond, 0.5) == DELAY_EDGES_MS[-1]


def test_thinning_loses_no_row_no_spill_and_no_peak():
    made = make_day(301, seal_after=250)
    points = tallied(made.entries).tally.points
    assert len(points) == 301
    thin = thinned(points)
    assert len(thin) < 160
    for one, other in ((points, thin), (points, thinned(thin))):
        for count in ("rows", "rejected", "epochs"):
            assert sum(getattr(p, count) for p in one) == sum(getattr(p, count) for p in other)
        for slot in (0, 1):
            spilled = [sum(p.spilled_bytes.get(slot, 0) for p in ps) for ps in (one, other)]
            assert spilled[0] == spilled[1]
            peaks = [max(p.state_bytes[slot] for p in ps) for ps in (one, other)]
            assert peaks[0] == peaks[1]
        seconds = [sum(sum(p.seconds.values()) for p in ps) for ps in (one, other)]
        assert seconds[0] == pytest.approx(seconds[1])
    assert [p.epoch for p in thin] == sorted(p.epoch for p in thin)
    assert thin[-1].epoch == 300


def test_history_is_bounded():
    made = make_day(MOST_POINTS + 200, rows=4)
    model = tallied(made.entries)
    assert len(model.tally.points) <= MOST_POINTS
    assert sum(p.epochs for p in model.tally.points) == MOST_POINTS + 200
    assert len(model.tally.recent) == RECENT_EPOCHS


def test_years_of_days_leave_the_open_one_its_points():
    """Every day keeps two points at least: 600 of them would leave no room for the present one."""
    point = tallied(make_day(1).entries).tally.points[0]
    points = []
    for day in range(600):
        for epoch in range(20):
            update = {"session": f"{day:04}", "flush": epoch == 19}
            points.append(point.model_copy(update=update))
            if len(points) > MOST_POINTS:
                points = with_room(points)
    assert len(points) <= MOST_POINTS
    assert sum(each.session == "0599" for each in points) > 9
    days = sorted({each.session for each in points})
    assert days[-1] == "0599"
    assert len(days) == 600 - int(days[0]) > 200, "the newest, without a gap"


def corrected(revision: int, results: int) -> SessionEvent:
    details = {"revision": revision, "source": "late.jsonl", "reason": "r", "by": "ada"}
    more = {"digest": "0" * 64, "rows": 3, "results": results}
    return SessionEvent(session=DAY, event="corrected", details=details | more)


def test_what_corrections_have_added_is_a_part_of_the_results(settings, warehouse):
    """And why the verdict does not count any more is told until one knows of the last of them."""

    def now():
        day = status(warehouse, settings, made.now(), None).session_of(DAY)
        return day.results_corrections, day.results, day.unproved, day.verdict is not None

    made = make_day(60, seal_after=40)
    fill_journal(warehouse, made.entries)
    at_run_time = made.results[DAY]
    warehouse.sessions.append(SessionEvent(session=DAY, event="cleaned", cleanup=7))
    assert now() == (None, at_run_time + 7, "", False)
    warehouse.sessions.append(verdict(True))
    assert now() == (None, at_run_time + 7, "", True)
    warehouse.sessions.append(corrected(1, 20))
    warehouse.sessions.append(corrected(1, 20))  # finished by two commands
    assert now() == (20, at_run_time + 27, "corrected, not proved again", False)
    warehouse.sessions.append(corrected(2, 0))
    assert now() == (20, at_run_time + 27, "corrected, not proved again", False)
    knowing = {"corrections": {"revisions": 2, "rows": 6, "results": 20}}
    warehouse.sessions.append(verdict(True).model_copy(update={"details": knowing}))
    assert now() == (20, at_run_time + 27, "", True)


def test_who_has_accepted_that_input_is_lost_and_why(settings, warehouse):
    """The last word counts; without ranges it was taken back."""

    def now():
        found = status(warehouse, settings, made.now(), None).session_of(DAY).accepted_losses
        return [(each.by, each.reason, each.at[:10]) for each in found]

    def accepted(*ranges: dict, by: str) -> SessionEvent:
        loss = {"ranges": list(ranges), "reason": f"because of {by}", "by": by}
        at = "2026-01-05T22:00:00Z"
        return SessionEvent(session=DAY, event="accepted", details={"loss": loss}, written_at=at)

    lost = {"topic": "stock", "partition": 0, "begin": 0, "end": 5}
    made = make_day(60, seal_after=40)
    fill_journal(warehouse, made.entries)
    assert now() == []
    for by in ("ada", "bob"):
        warehouse.sessions.append(accepted(lost, by=by))
        assert now() == [(by, f"because of {by}", DAY)]
    warehouse.sessions.append(accepted(by="eve"))
    assert now() == []


def test_a_look_goes_through_the_events_once(settings, warehouse, monkeypatch):
    """Not once for each session: there is one more every day."""
    fill_journal(warehouse, make_day(60, seal_after=40).entries)
    counted = []

    class Events(list):
        def __iter__(self):
            counted.append(1)
            return super().__iter__()

    monkeypatch.setattr(SessionHistory, "events", lambda *_: Events())
    assert len(status(warehouse, settings, make_day(60).now(), None).sessions) == 2
    assert len(counted) == 1


def test_an_epochs_seconds_add_up():
    made = make_day(5)
    for point in tallied(made.entries).tally.points:
        whole = (point.ended_ms - point.started_ms) / 1000
        assert sum(point.seconds.values()) == pytest.approx(whole, abs=0.01)


def test_a_slow_disk_is_named_by_what_the_newest_epoch_has_measured(settings, warehouse):
    """It is gone when the disk is fast again."""
    made = make_day(5)
    [*before, newest] = made.entries
    slow = newest.model_copy(update={"seconds": {"job": 1.0, "commits before": 15.04}})
    fill_journal(warehouse, [*before, slow])
    found = status(warehouse, settings, made.now(), None)
    told = "slow: the tables' (warehouse.root) took 15.0 s for an epoch's commits"
    assert found.slow_disks == stream(found, 1.0).slow_disks == told
    assert told in shown(found)
    # The next epoch finds it fast.
    fill_journal(warehouse, make_day(6).entries[-1:])
    assert status(warehouse, settings, made.now(), None).slow_disks == ""
