"""A host's clock that is wrong: found once an epoch, told by name and difference."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from spillway.doctor import _clocks
from spillway.protocol.state import begin
from spillway.readmodel.clocks import TOLERATED_MS, ahead_ms, clocks_text, wrong_clocks
from spillway.stream.troubles import ClockWatch
from spillway_schemas.journal import SlotTotals
from tests.protocol_entries import genesis

HOUR_MS = 3_600_000


def totals(slot: int, host: str, ahead: int = 0) -> SlotTotals:
    return SlotTotals(
        slot=slot,
        host=host,
        budget_bytes=1,
        state_bytes=0,
        folder_bytes=0,
        rows=0,
        clock_ahead_ms=ahead,
    )


@given(st.integers(0, 10**9), st.integers(0, 10**6), st.integers(0, 10**6), st.integers())
def test_no_slow_job_makes_a_clock_wrong_and_none_looks_worse_than_it_is(
    began: int, until: int, after: int, ahead: int
) -> None:
    """The driver's clock shows `began`, the worker's is read, and the job ends."""
    found = ahead_ms(began + until + ahead, began, began + until + after)
    assert (found > 0) <= (ahead > 0)
    assert (found < 0) <= (ahead < 0)
    assert abs(found) <= abs(ahead)
    assert abs(ahead) - abs(found) <= until + after, "no more is hidden than the job took"


def test_what_differs_by_little_is_no_trouble() -> None:
    slots = [totals(0, "a", TOLERATED_MS), totals(1, "b", -TOLERATED_MS), totals(2, "c")]
    assert wrong_clocks(slots) == {}
    assert clocks_text({}) == ""


def test_the_greater_difference_of_a_host_counts_and_one_without_a_name_is_the_drivers() -> None:
    slots = [
        totals(0, "b", -6_000),
        totals(1, "b", -HOUR_MS),
        totals(2, "b", 7_000),
        totals(3, "a", TOLERATED_MS + 1),
        totals(4, "", HOUR_MS),
    ]
    assert wrong_clocks(slots) == {"a": TOLERATED_MS + 1, "b": -HOUR_MS}


def test_the_hosts_are_named_with_the_difference() -> None:
    told = clocks_text({"a": 65_400, "b": -HOUR_MS + 2_000})
    assert told == (
        "clocks differ: a's is 1 min 5 s ahead of the driver's, b's is 59 min 58 s behind the "
        "driver's. The join is exact all the same, but committed_at and the delays of results are "
        "wrong by as much: let NTP set the clock of every host"
    )


def test_it_is_said_once_and_said_when_it_is_over() -> None:
    clocks = ClockWatch()
    heard = [
        clocks.told([totals(0, "a", ahead_a), totals(1, "b", ahead_b)], 900)
        for ahead_a, ahead_b in (
            (0, -HOUR_MS),
            (0, -HOUR_MS + 9),
            (HOUR_MS, -HOUR_MS),
            (HOUR_MS, 0),
            (HOUR_MS, 0),
        )
    ]
    assert heard == [
        [clocks_text({"b": -HOUR_MS})],
        [],
        [clocks_text({"a": HOUR_MS, "b": -HOUR_MS})],
        ["the clocks of b and of the driver agree again"],
        [],
    ]


def test_a_clock_that_a_slow_epoch_hides_does_not_agree_again() -> None:
    """It is 8 s ahead all the time; then it is set, which slow epochs show, too."""
    clocks = ClockWatch()
    assert len(clocks.told([totals(0, "a", 7_000)], 1_000)) == 1
    assert clocks.told([totals(0, "a", 0)], 9_000) == []
    assert clocks.told([totals(0, "a", 2_000)], 6_000) == []
    assert clocks.told([totals(0, "a", 7_500)], 500) == []
    assert clocks.told([totals(0, "a", 0)], 7_500) == []
    [told] = clocks.told([totals(0, "a", 0)], 7_400)
    assert told == "the clocks of a and of the driver agree again"


def test_of_a_host_that_is_gone_nothing_is_said() -> None:
    clocks = ClockWatch()
    assert len(clocks.told([totals(0, "a"), totals(1, "b", HOUR_MS)], 900)) == 1
    assert clocks.told([totals(0, "a"), totals(1, "a")], 900) == []
    assert clocks.told([totals(0, "a"), totals(1, "b", HOUR_MS)], 900) == []


@given(
    st.integers(-20_000, 20_000), st.lists(st.tuples(st.integers(0, 9_000), st.integers(0, 9_000)))
)
def test_a_clock_that_nobody_sets_is_told_of_once(ahead: int, jobs: list[tuple[int, int]]) -> None:
    """`jobs`: how long each ran before its host's clock was read, and after."""
    clocks = ClockWatch()
    heard = [
        clocks.told([totals(0, "a", ahead_ms(until + ahead, 0, until + after))], until + after)
        for until, after in jobs
    ]
    assert sum(map(len, heard)) <= 1


def test_doctor_names_them() -> None:
    state = begin(genesis())
    assert _clocks(state) == []
    [check] = _clocks(replace(state, totals=(totals(0, "a", HOUR_MS),)))
    assert (check.name, check.status, check.mend) == (
        "clocks",
        "warn",
        "let NTP set the clock of every host",
    )
    assert "a's is 1 h ahead of the driver's" in check.what
