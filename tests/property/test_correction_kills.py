"""Corrections under random kills: every result of the enlarged input once, whatever happens."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any

from hypothesis import HealthCheck
from hypothesis import strategies as st

from spillway.tables import OutcomeUnknown, Warehouse
from spillway.verify.proof import NotCleaned
from tests.closed_day import STREAMS, ClosedDay, Late, correction_of, make_closed_day
from tests.lanes import explored

ROW = st.builds(Late, st.sampled_from(STREAMS), st.integers(0, 3), st.integers(0, 200))
STEPS = ("keep_correction", "apply_correction", "note")


class Killed(BaseException):
    """The process has died."""


class Dying(Warehouse):
    """Dies before or after its first commit of a kind, or does not know what came of it."""

    def arm(self, step: str, how: str) -> Dying:
        self.step, self.how = step, how
        append = self.sessions.append
        self.sessions.append = lambda event: self._dying("note", append, event)  # type: ignore
        return self

    def keep_correction(self, *told: Any) -> None:
        self._dying("keep_correction", super().keep_correction, *told)

    def apply_correction(self, *told: Any) -> None:
        self._dying("apply_correction", super().apply_correction, *told)

    def _dying(self, step: str, act: Any, *told: Any) -> Any:
        if (step, self.how) == (self.step, "before"):
            raise Killed
        done = act(*told)
        if (step, self.how) == (self.step, "after"):
            raise Killed
        if (step, self.how) == (self.step, "unknown"):
            raise OutcomeUnknown("not known")
        return done


def check(day: ClosedDay, corrections: dict[str, Any], *, whole: bool) -> None:
    """What the table holds is the join of the day with the revisions that are in."""
    kept = day.revisions()
    assert [each.revision for each in kept] == list(range(1, len(kept) + 1))
    applied = day.warehouse.corrections("2026-01-05").applied
    mine = {each.revision: corrections[each.digest] for each in kept}
    expected = day.enlarged({n: each for n, each in mine.items() if n <= applied})
    before = day.enlarged({})
    found = day.results()
    assert Counter({result: n for (_, result), n in found.items()}) == expected
    # The reference of the additions: of the enlarged input what is not there.
    added = Counter({result: n for (phase, result), n in found.items() if phase == "correction"})
    assert added == expected - before
    if day.query.spans[0] is None:
        with nullcontext() if whole else suppress(NotCleaned):
            report = day.prove()
            assert (report.complete, report.expected) == (True, expected.total())
            assert report.cleanup == 0
    if not whole:
        return
    assert {each.digest for each in kept} == corrections.keys()
    revisions = day.warehouse.sessions.revisions("2026-01-05")
    assert sorted(revisions) == [each.revision for each in kept]
    for n, each in revisions.items():
        upto, less = ({k: c for k, c in mine.items() if k <= m} for m in (n, n - 1))
        assert each.results == (day.enlarged(upto) - day.enlarged(less)).total()
        assert (each.rows, each.digest) == (len(mine[n].topics), mine[n].digest)


@explored(
    2,
    6,
    suppressed=[HealthCheck.too_slow],
    query=st.sampled_from(("symbol", "symbol_window")),
    rows=st.lists(ROW, max_size=14),
    late=st.lists(st.lists(ROW, min_size=1, max_size=6), min_size=1, max_size=3),
    kills=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(STEPS),
            st.sampled_from(("before", "after", "unknown")),
        ),
        max_size=4,
    ),
    overtaken=st.booleans(),
)
def test_each_result_of_the_enlarged_input_once(
    query: str,
    rows: Sequence[Late],
    late: Sequence[Sequence[Late]],
    kills: Sequence[tuple[int, str, str]],
    overtaken: bool,
) -> None:
    with tempfile.TemporaryDirectory() as root:
        day = make_closed_day(f"{root}/w", rows, query=query)
        given = [correction_of(some, n + 1, day.query) for n, some in enumerate(late)]
        corrections = {each.digest: each for each in given}
        for which, step, how in kills:
            dying = Dying(day.root, fsync=False).arm(step, how)
            try:
                day.correct(given[which % len(given)], dying)
            except (Killed, OutcomeUnknown):
                check(day, corrections, whole=False)
        if overtaken:
            day.correct(given[-1], Overtaken(day.root, fsync=False).by(day, given[0]))
        for each in given:
            day.correct(each)
        check(day, corrections, whole=True)
        files = {name: len(day.warehouse.files(name)) for name in ("results", "corrections")}
        for each in given:
            assert day.correct(each).already
        done = day.correct(None)
        assert (done.finished, done.revision) == ((), None)
        assert files == {name: len(day.warehouse.files(name)) for name in files}
        assert day.warehouse.check() == []


class Overtaken(Warehouse):
    """Another process makes a correction just before this one keeps its rows."""

    def by(self, day: ClosedDay, correction: Any) -> Overtaken:
        self.day, self.correction = day, correction
        return self

    def keep_correction(self, *told: Any) -> None:
        if self.correction is not None:
            other, self.correction = self.correction, None
            self.day.correct(other)
        super().keep_correction(*told)
