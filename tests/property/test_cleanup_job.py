"""The cleanup's driver under random interruptions, without Spark: each result once in the end.

Only Spark is a stand-in (`Here`); everything else is real: tables, files, commits.
"""

from __future__ import annotations

import tempfile

import hypothesis.strategies as st
from hypothesis import HealthCheck

from spillway.cleanup.job import run_cleanup
from spillway.cleanup.lease import Lease
from spillway.tables import OutcomeUnknown, Warehouse
from tests.integration.spilled_day import (
    DAY,
    OUTER,
    SPEC,
    Here,
    brute_force,
    make_day,
    random_rows,
    results_of,
)
from tests.lanes import explored


class Killed(BaseException):
    pass


class Interrupted(Warehouse):
    """Dies before or after its `countdown`-th commit, or does not know what came of it."""

    def arm(self, countdown: int, how: str) -> Interrupted:
        self.countdown, self.how = countdown, how
        return self

    def apply_cleanup(self, session, ranges, table="results"):
        self.countdown -= 1
        if self.countdown == 0 and self.how == "before":
            raise Killed
        before = super().apply_cleanup(session, ranges, table)
        if self.countdown == 0 and self.how == "after":
            raise Killed
        if self.countdown == 0 and self.how == "unknown":
            raise OutcomeUnknown("not known")
        return before


@explored(
    2,
    8,
    suppressed=[HealthCheck.too_slow],
    seed=st.integers(0, 10**6),
    interruptions=st.lists(
        st.tuples(st.integers(1, 9), st.sampled_from(["before", "after", "unknown"])), max_size=4
    ),
    overtaken_at=st.none() | st.integers(0, 8),
    task_bytes=st.sampled_from([1, 3000, 2**20]),
    spec=st.sampled_from([SPEC, OUTER]),
)
def test_each_result_once_whatever_happens(seed, interruptions, overtaken_at, task_bytes, spec):
    with tempfile.TemporaryDirectory() as root:
        rows = random_rows(seed, 200, 40 if spec is SPEC else 80, 4)
        day = make_day(root, rows, depth=3, spec=spec)
        expected = brute_force(day.rows, spec)
        others = []

        def overtake(progress):
            if overtaken_at is not None and progress.ranges_done >= overtaken_at and not others:
                others.append(None)
                run_cleanup(Here, day.warehouse(), spec, DAY, task_bytes=task_bytes)

        for countdown, how in interruptions:
            warehouse = Interrupted(root, fsync=False).arm(countdown, how)
            try:
                run_cleanup(Here, warehouse, spec, DAY, task_bytes=task_bytes)
            except (Killed, OutcomeUnknown):
                # What is there is whole ranges, never a part of one.
                found = results_of(day.warehouse())
                assert found <= expected
        cleaned = run_cleanup(
            Here, day.warehouse(), spec, DAY, on_progress=overtake, task_bytes=task_bytes
        )
        assert results_of(day.warehouse()) == expected
        assert cleaned.cleanup == sum(n for key, n in expected.items() if key[0] == "cleanup")
        events = [e for e in day.warehouse().sessions.read() if e.event == "cleaned"]
        assert [e.cleanup for e in events] == [cleaned.cleanup]


def test_the_cleanup_that_began_last_works_and_the_other_waits(tmp_path):
    day = make_day(str(tmp_path), random_rows(1, 200, 40, 4), depth=3)
    told = []

    def another_begins_and_dies(progress):
        if progress.ranges_done >= 2 and not told:
            told.append("")
            Lease.take(day.warehouse(), DAY)

    cleaned = run_cleanup(
        Here,
        day.warehouse(),
        SPEC,
        DAY,
        on_progress=another_begins_and_dies,
        tell=told.append,
        stalled_s=0.1,
        task_bytes=1,
    )
    assert not cleaned.already
    assert results_of(day.warehouse()) == brute_force(day.rows)
    assert "another cleanup of" in told[1]
    assert "made no progress" in told[2]
    begun = [e for e in day.warehouse().sessions.read() if e.event == "cleaning"]
    assert len(begun) == 3  # this one, the other, this one again


def test_a_cleanup_that_was_overtaken_commits_nothing_more(tmp_path):
    day = make_day(str(tmp_path), random_rows(2, 200, 40, 4), depth=3)
    before = {}

    def another_begins(progress):
        if progress.ranges_done >= 2 and not before:
            Lease.take(day.warehouse(), DAY)
            before["applied"] = day.warehouse().cleanup_applied(DAY)

    def finish(text):
        """While the older one waits, nobody but the newer one has got on."""
        if "waits" in text:
            assert day.warehouse().cleanup_applied(DAY) == before["applied"]
            run_cleanup(Here, day.warehouse(), SPEC, DAY)

    cleaned = run_cleanup(
        Here,
        day.warehouse(),
        SPEC,
        DAY,
        on_progress=another_begins,
        tell=finish,
        stalled_s=60,
        task_bytes=1,
    )
    assert cleaned.already
    assert results_of(day.warehouse()) == brute_force(day.rows)
