"""What lost slots leave to cleanup: which cuts, and what is read again of them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.cleanup import deferred as job
from spillway.cleanup.deferred import (
    PartsTask,
    PartWritten,
    TopicSource,
    check_written,
    parts_of,
    write_parts,
)
from spillway.cleanup.job import Cleaned, run_cleanup
from spillway.cleanup.plan import CleanupRefused
from spillway.cleanup.progress import outcome_sentence
from spillway.engine.spill.generations import DeferredGenerations
from spillway.engine.wire.blocks import RESTORED, Block, encode_counts, to_batch
from spillway.kafka.client import TopicMissing, TopicProblem
from spillway.kafka.held import input_gone, input_losses
from spillway.policy.restoring import RESTORED_PER_CORE_S, most_restored_rows, rate_shown
from spillway.protocol.deferral import (
    _since,
    deferred_cuts,
    deferred_rows,
    not_deferrable,
    rows_to_read,
)
from spillway.protocol.entry import entry_of
from spillway.protocol.losses import without_lost
from spillway.protocol.plan import plan_epoch
from spillway.protocol.recovery import Deferred, InputChanged
from spillway.protocol.state import JournalState, replay
from spillway.storage import StorageError
from spillway.stream.decoding import cut_epochs
from spillway.stream.messages import MessageSource
from spillway_schemas.journal import HASH_BITS, Epoch, EventTime, Genesis, Prefix, SlotTotals, Topic
from spillway_schemas.losses import AcceptedLoss, LostRange
from spillway_schemas.windows import BEGINNING_US
from tests.integration.spilled_day import SPEC, make_day, random_rows
from tests.protocol_entries import (
    DAY,
    GROUPS,
    NEXT,
    TOPICS,
    claim,
    closing,
    count,
    cut,
    ends,
    epoch,
    genesis,
    report,
    seal,
    sealed,
)

BEGUN = (genesis(), claim(1, 1))
READ = [count("a", 0, 4, 7), count("a", 1, 4, 1), count("b", 0, 4, 2)]
ONE = epoch(2, 0, ends(4, 4, 4), read=READ)


def after(*entries: Epoch, begun: tuple[Any, ...] = BEGUN) -> JournalState:
    state = replay([*begun, *entries])
    assert state is not None
    return state


def planned(state: JournalState, most: int | None, lost: tuple[int, ...] = (0,), **more: Any):
    end = more.pop("end", ends(9, 9, 9))
    commands = more.pop("commands", [])
    return plan_epoch(state, end, commands, NEXT, frozenset(lost), most_restored_rows=most, **more)


# --- what is planned


@pytest.mark.parametrize(("most", "defers"), [(None, False), (12, False), (11, True), (0, True)])
def test_more_rows_than_may_be_read_again_are_deferred(most: int | None, defers: bool) -> None:
    plan = planned(after(ONE), most)
    assert (plan.restore is None) == defers
    assert plan.deferred == ((cut(0, 0), cut(1, 0)) if defers else ())
    assert plan.deferred_slots == ((0,) if defers else ())
    assert dict(plan.manifests)[0] is None


def test_nothing_lost_nothing_deferred() -> None:
    plan = planned(after(ONE), 0, ())
    assert (plan.restore, plan.deferred, plan.deferred_slots) == (None, (), ())


def test_what_was_cut_in_the_last_epoch_was_not_in_memory() -> None:
    state = after(ONE.model_copy(update={"cuts": [cut(1, 0)]}))
    assert deferred_cuts(state, [0, 1]) == (cut(0, 0), cut(2, 0), cut(3, 0))


def test_sessions_without_rows_have_nothing_to_defer() -> None:
    accepted = ONE.model_copy(update={"seal": seal(ends(6, 6, 6))})
    assert {each.session for each in deferred_cuts(after(accepted), [0])} == {DAY}
    both = after(accepted, epoch(3, 1, ends(5, 5, 7)))
    assert [each.session for each in deferred_cuts(both, [0])] == [DAY, DAY, NEXT, NEXT]
    assert deferred_cuts(after(epoch(2, 0, ends(0, 0, 0))), [0]) == ()


def test_trees_and_sessions_that_carry_rows_are_restored() -> None:
    tree = genesis(parents=[1, -1], joins=["ab", "abc"], groups=[(Prefix(1, i), i) for i in (0, 1)])
    carrying = genesis(carry=True)
    assert not_deferrable(genesis()) == ""
    for other in (tree, carrying):
        assert not_deferrable(other)
        state = replace(after(ONE), genesis=other)
        if other is carrying:
            plan = planned(state, 0, history=[ONE])
            assert plan.restore is not None
            assert plan.deferred == ()


def test_a_seal_in_the_same_epoch_flushes_what_is_deferred() -> None:
    state = after(ONE)
    plan = planned(state, 0, end=ends(5, 5, 5), commands=[closing(ends(5, 5, 5))])
    assert plan.sealing
    assert plan.flush == (Prefix(2, 0), Prefix(2, 1))
    entry = entry_of(
        state, plan, [report(0, 1), report(1, 1)], started_at="", written_at="", seconds={}
    )
    assert entry.deferred == [cut(0, 0), cut(1, 0)]
    assert entry.deferred_slots == [0]
    assert entry.sealed is not None
    assert entry.sealed.generations == 2
    assert len(entry.sealed.ranges) == 32


def test_a_cut_by_reference_is_a_cut() -> None:
    state = after(
        ONE.model_copy(update={"cuts": [cut(1, 0)]}),
        epoch(3, 1, ends(6, 6, 6), read=READ),
        epoch(4, 2, ends(7, 7, 7), deferred=[cut(0, 1), cut(1, 1)], deferred_slots=[0]),
    )
    (session,) = state.sessions
    assert session.last_cuts == {Prefix(2, 0): 1, Prefix(2, 1): 1}
    # The only one that is kept may not be taken back.
    assert session.recent_cuts == {Prefix(2, 0): (1,), Prefix(2, 1): (1,)}
    assert session.cuts == 3
    plan = planned(state, None)
    assert plan.restore is not None
    assert plan.restore.read_from == ends(6, 6, 6)


# --- what is read again


def day(*entries: Epoch) -> tuple[Genesis, list[Any]]:
    return genesis(), [*BEGUN, *entries]


def test_a_generation_is_read_from_the_cut_before_it() -> None:
    first, entries = day(
        ONE.model_copy(update={"cuts": [cut(0, 0)]}),
        epoch(3, 1, ends(6, 6, 6), read=READ[:1], cuts=[cut(3, 1)]),
        epoch(4, 2, ends(7, 8, 9), read=READ[1:], voided=[cut(3, 1)]),
        epoch(5, 3, ends(9, 9, 9), read=READ, deferred=[cut(0, 2)], deferred_slots=[0]),
    )
    again = deferred_rows(first, sealed(ends(9, 9, 9), 3), entries)
    assert again is not None
    assert (again.read_from, again.read_to) == (ends(4, 4, 4), ends(7, 8, 9))
    assert [(part.rows, part.digest) for part in again.expected] == [(4, 7), (4, 1), (4, 2)]
    (session,) = again.sessions
    assert session.deferred == Deferred(
        marks=((0, ends(4, 4, 4)), (2, ends(7, 8, 9))),
        spilled=((Prefix(2, 0), 0),),
        deferred=((Prefix(2, 0), 2),),
        expired_by_us=((2, BEGINNING_US),),
        held=((2, 0),),
    )


def test_the_first_generation_is_read_from_the_sessions_base() -> None:
    first, entries = day(ONE, epoch(3, 1, ends(5, 5, 5), deferred=[cut(2, 0)]))
    again = deferred_rows(first, sealed(ends(5, 5, 5), 1), entries)
    assert again is not None
    assert (again.read_from, again.read_to) == (ends(0, 0, 0), ends(4, 4, 4))
    assert [part.rows for part in again.expected] == [4, 4, 4]


def test_of_two_generations_the_earlier_one_says_where_to_begin() -> None:
    first, entries = day(
        ONE,
        epoch(3, 1, ends(5, 5, 5), deferred=[cut(0, 0)]),
        epoch(4, 2, ends(6, 6, 6), deferred=[cut(0, 1), cut(2, 1)]),
    )
    again = deferred_rows(first, sealed(ends(6, 6, 6), 2), entries)
    assert again is not None
    assert (again.read_from, again.read_to) == (ends(0, 0, 0), ends(5, 5, 5))


def test_another_sessions_cuts_are_not_asked_for() -> None:
    first, entries = day(ONE, epoch(3, 1, ends(5, 5, 5), deferred=[cut(0, 0, session=NEXT)]))
    assert deferred_rows(first, sealed(ends(5, 5, 5), 1), entries) is None


RANGES = st.sampled_from([Prefix(0, 0), *(Prefix(1, i) for i in (0, 1)), *(g for g, _ in GROUPS)])


def totals(slot: int, rows: int) -> SlotTotals:
    return SlotTotals(slot=slot, budget_bytes=9, state_bytes=9, folder_bytes=9, rows=rows)


CUTS = st.lists(st.tuples(RANGES, st.integers(0, 5)), max_size=6)


@given(CUTS, CUTS.filter(bool), st.integers(0, 3), st.integers(0, 7))
def test_a_row_is_of_the_generation_that_its_next_cut_ended(
    spilled: list[tuple[Prefix, int]],
    deferred: list[tuple[Prefix, int]],
    group: int,
    came: int,
) -> None:
    hash_ = group << (HASH_BITS - 2) | 5
    later = [
        (at, kind)
        for kind, cuts in (("spilled", spilled), ("deferred", deferred))
        for range_, at in cuts
        if range_.lo <= hash_ < range_.hi and at >= came
    ]
    first = min((at for at, _ in later), default=None)
    kinds = {kind for at, kind in later if at == first}
    wanted = first if kinds == {"deferred"} else -1
    found = DeferredGenerations(spilled, deferred)
    assert found.of(np.array([hash_], np.uint64), np.array([came])).tolist() == [wanted]


def test_rows_know_between_which_cuts_they_came() -> None:
    marks = ((2, {"a": [5]}), (7, {"a": [9, 3]}))
    deferred = Deferred(marks=marks, spilled=(), deferred=())
    offsets = np.arange(11)
    assert cut_epochs(deferred, "a", 0, offsets).tolist() == [2] * 5 + [7] * 4 + [8] * 2
    # A partition that was found later had no row before.
    assert cut_epochs(deferred, "a", 1, offsets[:4]).tolist() == [7] * 3 + [8]


@given(CUTS, CUTS.filter(bool))
def test_a_generation_begins_after_the_last_cut_of_all_its_hashes(
    spilled: list[tuple[Prefix, int]], deferred: list[tuple[Prefix, int]]
) -> None:
    found = sorted(_since(spilled, deferred, -1))
    wanted = sorted(
        (
            max(
                (b for cut_, b in spilled + deferred if b < at and cut_.covers(range_)), default=-1
            ),
            at,
        )
        for range_, at in deferred
    )
    assert found == wanted


def test_rows_that_had_expired_when_they_were_lost_are_not_read() -> None:
    """With a window nothing is read before the first epoch of which anything was kept."""
    rules = EventTime(lateness_us=0, ahead_us=10**9, topics=["a", "b"], kept_us=100)
    first = genesis(event_time=rules)
    entries: list[Any] = [first, claim(1, 1)]
    for n in range(11):
        read = [
            count(*part, 4, n).model_copy(update={"greatest_us": 100 * n})
            for part in (("a", 0), ("a", 1), ("b", 0))
        ]
        at = 4 * (n + 1)
        entries.append(epoch(n + 2, n, ends(at, at, at), read=read, watermarks={DAY: 100 * n}))
    lost = entries[-1].model_copy(update={"deferred": [cut(0, 9)], "deferred_slots": [0]})
    seals = sealed(ends(44, 44, 44), 1).model_copy(update={"epoch": 10})
    again = deferred_rows(first, seals, [*entries[:-1], lost])
    assert again is not None
    # The rows of epoch 9 were judged by 800 us, so what is older than 700 us had expired.
    assert (again.read_from, again.read_to) == (ends(28, 28, 28), ends(40, 40, 40))
    assert [(c.rows, c.digest) for c in again.expected] == [(12, 7 + 8 + 9)] * 3


# --- cleanup


@pytest.mark.parametrize("rows", [0, 4])
def test_what_is_written_is_what_the_slots_had(rows: int) -> None:
    one = ONE.model_copy(update={"slots": [totals(0, 4), totals(1, 9)]})
    lost = epoch(3, 1, ends(5, 5, 5), deferred=[cut(0, 0)], deferred_slots=[0])
    first, entries = day(one, lost)
    again = deferred_rows(first, sealed(ends(5, 5, 5), 1), entries)
    assert again is not None
    assert again.sessions[0].deferred is not None
    assert again.sessions[0].deferred.held == ((0, 4),)
    counts = list(again.expected)
    written = [
        PartWritten(counts=counts, files=[], rows={0: rows}),
        PartWritten(counts=[], files=[], rows={}),
    ]
    problem = r"had 4 rows in memory when they were lost after epoch 0, and .* gave 0"
    with nullcontext() if rows else pytest.raises(InputChanged, match=problem):
        check_written(again, written)
    with pytest.raises(InputChanged, match="cannot be read again in Kafka"):
        check_written(again, written[1:])
    full = PartWritten(counts=counts, files=[], rows={}, problem=(28, "the disk is full"))
    with pytest.raises(StorageError, match="the disk is full"):
        check_written(again, [full])


def test_of_two_open_sessions_it_is_not_known_what_each_had() -> None:
    one = ONE.model_copy(update={"slots": [totals(0, 4)]})
    lost = epoch(
        3, 1, ends(5, 5, 5), deferred=[cut(0, 0), cut(0, 0, session=NEXT)], deferred_slots=[0]
    )
    first, entries = day(one, lost)
    again = deferred_rows(first, sealed(ends(5, 5, 5), 1), entries)
    assert again is not None
    assert again.sessions[0].deferred is not None
    assert again.sessions[0].deferred.held == ()


def test_parts_grow_with_the_rows() -> None:
    assert [len(parts_of(rows)) for rows in (0, 250_000, 10**6, 10**9)] == [2, 2, 8, 4096]


def test_a_full_disk_is_told_and_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would try again, and bury the reason."""

    def full(*_: object) -> None:
        raise StorageError(28, "cannot write x: the disk is full")

    monkeypatch.setattr(job, "write_part", full)
    task: Any = PartsTask(None, DAY, None, None, (5, 6))  # type: ignore[arg-type]
    counts = encode_counts([count("a", 0, 4, 7)])
    batch = to_batch([Block(6, "count", 0, RESTORED, counts)])
    (written,) = write_parts(task, [batch])
    done = PartWritten.model_validate_json(written["written"][0].as_py())
    assert done.problem == (28, "cannot write x: the disk is full")
    assert done.counts == [count("a", 0, 4, 7)]
    assert list(write_parts(task, [])) == []


def test_rows_that_cannot_be_read_again_stop_a_cleanup_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, entries = day(ONE, epoch(3, 1, ends(5, 5, 5), deferred=[cut(2, 0)]))
    again = deferred_rows(first, sealed(ends(5, 5, 5), 1), entries)
    monkeypatch.setattr("spillway.cleanup.work._deferred", lambda *_: again)
    spilled = make_day(str(tmp_path / "w"), random_rows(1, 60, 10, 2))

    def never() -> None:
        pytest.fail("Spark was started")

    with pytest.raises(CleanupRefused, match="only in Kafka, and nobody has said where"):
        run_cleanup(never, spilled.warehouse(), SPEC, DAY)
    source = TopicSource((), MessageSource("127.0.0.1:1", {}))
    monkeypatch.setattr(job, "demand_listener", lambda _: None)
    monkeypatch.setattr(job, "cluster", lambda *_: nullcontext(View(3)))
    gone = r"the input is gone|cannot be read again in Kafka: .* from offset 3 on"
    with pytest.raises(InputChanged, match=gone):
        run_cleanup(never, spilled.warehouse(), SPEC, DAY, source=source)


def test_the_outcome_says_how_many_rows_slots_had_lost() -> None:
    told = outcome_sentence(Cleaned(DAY, False, 7, 6, 64, 5, 4000, 3, 19.4, 1234))
    assert "from 4,000 spilled rows and 1,234 that slots had lost in 5 cuts, in 19.4 s" in told
    assert "lost" not in outcome_sentence(Cleaned(DAY, False, 7, 6, 64, 5, 4000, 3, 19.4))


class View:
    """A cluster with one topic."""

    def __init__(
        self, oldest: int = 0, id_: str = "id-a", newest: int = 9, stable: int | None = None
    ) -> None:
        """`stable`: where an open transaction begins; None: there is none."""
        self.oldest, self.id, self.newest = oldest, id_, newest
        self.stable = newest if stable is None else stable

    def cluster_id(self) -> str:
        return "c"

    def topics(self, names: list[str]) -> list[Topic]:
        if not self.id:
            raise TopicMissing("no topic a")
        return [Topic(name=name, id=self.id, partitions=1) for name in names]

    def beginning_offsets(self, names: list[str]) -> dict[str, list[int]]:
        return {name: [self.oldest] for name in names}

    def end_offsets(self, names: list[str], *, read_committed: bool = True) -> dict[str, list[int]]:
        return {name: [self.stable if read_committed else self.newest] for name in names}


@pytest.mark.parametrize(
    ("view", "begin", "end", "problem"),
    [
        (View(), 0, 9, ""),
        (View(4), 4, 9, ""),
        (View(4), 3, 3, ""),
        (View(4), 3, 9, "Kafka holds 'a' partition 0 from offset 4 on, but the input begins at 3"),
        (View(0, newest=8), 0, 8, ""),
        (
            View(0, newest=8),
            0,
            9,
            "Kafka holds 'a' partition 0 up to offset 8, but the input ends at 9",
        ),
        (View(0, newest=8), 9, 9, ""),
        (View(0, "other"), 0, 9, "the topic 'a' was deleted and created again: the input is gone"),
        (View(0, ""), 0, 9, "the input is gone: no topic a"),
    ],
)
def test_what_kafka_holds_no_more_is_named(view: Any, begin: int, end: int, problem: str) -> None:
    assert input_gone(view, TOPICS, {"a": [begin]}, {"a": [end]}) == problem


def test_a_topic_that_is_made_anew_while_it_is_asked_about_is_another_one() -> None:
    class Anew(View):
        def beginning_offsets(self, names: list[str]) -> dict[str, list[int]]:
            self.id = "other"
            return super().beginning_offsets(names)

    [found] = input_losses(Anew(), TOPICS, {"a": [0]}, {"a": [9]})  # type: ignore[arg-type]
    assert found.topic


@pytest.mark.parametrize(
    ("view", "begin", "end", "lost"),
    [
        (View(4), 4, 9, []),
        (View(4), 3, 9, [(3, 4)]),
        (View(8), 3, 6, [(3, 6)]),
        (View(0, newest=8), 0, 9, [(0, 9)]),
        (View(4, newest=8), 0, 9, [(0, 9)]),
        (View(0, "other"), 2, 9, [(2, 9)]),
        (View(0, ""), 2, 9, [(2, 9)]),
        (View(0, ""), 9, 9, []),
    ],
)
def test_what_is_lost_by_offsets(
    view: Any, begin: int, end: int, lost: list[tuple[int, int]]
) -> None:
    found = input_losses(view, TOPICS, {"a": [begin, 0]}, {"a": [end, 0, 0]})
    assert [(each.lost.begin, each.lost.end) for each in found] == lost
    assert all((each.lost.topic, each.lost.partition) == ("a", 0) for each in found)


def test_a_topic_that_this_user_may_not_see_is_not_lost() -> None:
    class Forbidden(View):
        def topics(self, names: list[str]) -> list[Topic]:
            raise TopicProblem("does not let this user see topic a")

    with pytest.raises(TopicProblem, match="does not let"):
        input_losses(Forbidden(), TOPICS, {"a": [0]}, {"a": [9]})  # type: ignore[arg-type]


def test_what_lies_beyond_an_open_transaction_is_not_lost() -> None:
    """It may be open again after a failover, though its rows were read as committed before."""
    with pytest.raises(TopicProblem, match="beyond 5 a transaction is open again") as told:
        input_losses(View(stable=5), TOPICS, {"a": [0]}, {"a": [9]})  # type: ignore[arg-type]
    assert told.value.what.endswith("Judging by where the partition ends, nothing is lost")
    abort = "'kafka-transactions.sh abort --topic a --partition 0 --start-offset 5'"
    assert abort in told.value.remedy
    assert not input_losses(View(stable=5), TOPICS, {"a": [0]}, {"a": [5]})  # type: ignore[arg-type]
    [cut] = input_losses(View(newest=8, stable=5), TOPICS, {"a": [0]}, {"a": [9]})  # type: ignore[arg-type]
    assert (cut.lost.begin, cut.lost.end) == (0, 9)


def test_lost_topics_come_first() -> None:
    class Both(View):
        def topics(self, names: list[str]) -> list[Topic]:
            return [Topic(name=name, id=f"new-{name}", partitions=1) for name in names]

    known = [Topic(name="a", id="new-a", partitions=1), Topic(name="b", id="b", partitions=1)]
    found = input_losses(Both(4), known, {"a": [0], "b": [0]}, {"a": [9], "b": [9]})  # type: ignore[arg-type]
    assert [str(each.lost) for each in found] == [
        "b/0 from offset 0 to 9",
        "a/0 from offset 0 to 4",
    ]


def test_a_partition_that_is_not_there_is_lost() -> None:
    found = input_losses(View(), TOPICS, {"a": []}, {"a": [9, 7]})  # type: ignore[arg-type]
    assert [str(each.lost) for each in found] == ["a/1 from offset 0 to 7"]


def test_without_what_is_lost_the_rest_is_read() -> None:
    first, entries = day(ONE, epoch(3, 1, ends(5, 5, 5), deferred=[cut(2, 0)]))
    again = deferred_rows(first, sealed(ends(5, 5, 5), 1), entries)
    assert again is not None
    assert (again.read_from, again.read_to) == (ends(0, 0, 0), ends(4, 4, 4))

    def lost(topic: str, partition: int, begin: int, end: int) -> LostRange:
        return LostRange(topic=topic, partition=partition, begin=begin, end=end)

    some = without_lost(again, [lost("a", 1, 0, 3), lost("b", 0, 0, 9)])
    assert some.read_from == {"a": [0, 3], "b": [4]}
    assert some.read_to == again.read_to
    assert some.lossy == {("a", 1), ("b", 0)}
    assert rows_to_read(again) == 12
    assert rows_to_read(some) == 4 + 1 + 0
    assert [each.deferred and each.deferred.held for each in some.sessions] == [()]
    assert some.sessions[0].deferred is not None
    assert again.sessions[0].deferred is not None
    assert some.sessions[0].deferred.deferred == again.sessions[0].deferred.deferred
    # What is not read anyway changes nothing.
    others = [lost("a", 1, 4, 5), lost("other", 0, 0, 9), lost("a", 7, 0, 9)]
    assert without_lost(again, others) is again
    part = PartWritten(counts=READ[:1], files=[], rows={})
    check_written(some, [part])
    with pytest.raises(InputChanged, match="cannot be read again in Kafka"):
        check_written(some, [part.model_copy(update={"counts": READ[1:]})])


@pytest.mark.parametrize(
    ("lost", "covered"),
    [
        ([("a", 0, 2, 7)], True),
        ([("a", 0, 3, 6), ("a", 0, 2, 2)], True),
        ([("a", 0, 1, 7)], False),
        ([("a", 0, 2, 8)], False),
        ([("a", 1, 2, 7)], False),
        ([("b", 0, 2, 7)], False),
        ([("a", 0, 2, 7), ("b", 0, 2, 7)], False),
        ([], True),
    ],
)
def test_what_was_accepted_covers(lost: list[tuple[str, int, int, int]], covered: bool) -> None:
    def ranges(places: list[tuple[str, int, int, int]]) -> list[LostRange]:
        return [LostRange(topic=t, partition=p, begin=b, end=e) for t, p, b, e in places]

    loss = AcceptedLoss(ranges=ranges([("a", 0, 2, 7)]), reason="", by="")
    assert loss.offsets == 5
    assert loss.covers(ranges(lost)) == covered


# --- which of the two


@pytest.mark.parametrize(
    ("mode", "shown", "rows"),
    [
        ("restore", 9e9, None),
        ("defer", 9e9, 0),
        ("auto", 0.0, 20 * RESTORED_PER_CORE_S),
        ("auto", 7.0, 70),
        ("auto", 1e6, 10_000_000),
    ],
)
def test_how_many_rows_may_be_read_again(mode: Any, shown: float, rows: int | None) -> None:
    assert most_restored_rows(mode, 10.0, 2, shown) == rows


@pytest.mark.parametrize(
    ("limit_rows", "rows", "seconds", "shown"),
    [
        (600_000, 599_997, 2.0, 299_998.5),  # Spark rounds down for each partition
        (600_000, 500_000, 2.0, 0),  # there were no more
        (0, 500_000, 2.0, 0),
        (10_000, 10_000, 0.4, 0),  # most of that time is the job's own
        (600_000, 600_000, 0.0, 0),
    ],
)
def test_an_epoch_that_was_full_shows_how_fast_rows_are_read(
    limit_rows: int, rows: int, seconds: float, shown: float
) -> None:
    assert rate_shown(limit_rows, rows, seconds) == shown
