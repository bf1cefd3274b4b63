"""One thread that looks at a warehouse while somebody asks; requests serialise what it saw.

Model: `Watch.answer(name, make)` gives bytes and a tag for a view of the last look. The thread is
started by the first question, looks every `EVERY_S` (less often when looks take long: it may use a
quarter of a core), and ends when nobody has asked for `IDLE_S`. A view is made once per look, and
has the same tag when its text is the same.

Invariants:
* Only the thread touches the warehouse and the memory of it; what it hands over never changes.
* A look that fails hands over the problem and keeps what was seen last: the page shows old figures
  and says since when, instead of nothing.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel

from spillway import calendar
from spillway.live.groups import GroupTable, look_at_groups
from spillway.live.views import points_of
from spillway.readmodel.model import ReadModel
from spillway.readmodel.tally import Point
from spillway.report.detail import cleaning
from spillway.report.html import report_html
from spillway.report.looking import Looker
from spillway.report.model import Cleaning, SessionStatus, Status
from spillway.tables import NothingYet, NoWarehouse
from spillway_schemas.settings import Settings, SettingsError

log = logging.getLogger(__name__)

EVERY_S = 1.0
SHARE = 3.0
"""The thread rests so many times as long as a look took."""
AGAIN_S = 3.0
"""How long it rests after a look that failed."""
IDLE_S = 60.0
FIRST_S = 4.0
"""How long a question waits for the first look, and for the first one with groups."""
MOST_MADE = 64
"""Views of one look that are kept: more than a few people have open at a time."""
MOST_CLEANED = 5
"""Sealed sessions whose cleanup is looked at in detail: the newest."""


@dataclass(frozen=True)
class WatchProblem:
    """Why there is nothing to see, or nothing new."""

    kind: Literal["settings", "no warehouse", "empty", "failed"]
    says: str


@dataclass(frozen=True)
class PageLook:
    """What one look found; never changed afterwards."""

    looked_ms: int = 0
    """When the last look that succeeded ended, ms since 1970; 0: none did."""
    problem: WatchProblem | None = None
    status: Status | None = None
    entry: str = ""
    """Digest of the journal's last entry: what follows from the journal alone is made again when
    that is another one."""
    points: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    """`points_of` each session that the history still knows."""
    cleaning: Mapping[str, Sequence[Cleaning]] = field(default_factory=dict)
    closes_ms: Mapping[str, int] = field(default_factory=dict)
    calendar: str = ""
    """The exchange, by its name, for people: `closes_ms` knows the days that are different, too.
    Empty before the first look."""
    zone: str = ""
    """Time zone of the exchange, by its name; empty when it has none."""
    trigger_s: float = 0.0
    policy: str = ""
    groups: GroupTable | None = None
    made: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    """Views of this look, the last `MOST_MADE`: text and tag. A look that fails hands them on, so
    without a bound every search for other groups would stay until one succeeds."""

    @property
    def at(self) -> datetime:
        """When that was."""
        return datetime.fromtimestamp(self.looked_ms / 1000, UTC)


class Watch:
    """Looks while it is asked."""

    def __init__(self, settings: Callable[[], Settings], *, every_s: float = EVERY_S) -> None:
        """`settings`: read before the first look, and again after one that failed."""
        self._load = settings
        self._every_s = every_s
        self._seen = PageLook()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._fresh = False
        """Whether the thread that runs has looked yet."""
        self._asked_s = 0.0
        self._groups_asked_s = float("-inf")
        self._looker: Looker | None = None
        self._settings: Settings | None = None
        self._cleaned: dict[str, tuple[object, Sequence[Cleaning]]] = {}
        self._closes_ms: dict[str, int] = {}

    def seen(self, *, groups: bool = False) -> PageLook:
        """What was seen last; waits a moment for the first look."""
        now = time.monotonic()
        with self._changed:
            self._asked_s = now
            if groups:
                if self._seen.groups is None:
                    self._changed.notify_all()  # do not let the thread rest first
                self._groups_asked_s = now
            if self._thread is None:
                self._fresh = False
                self._thread = threading.Thread(target=self._go, name="spillway-page", daemon=True)
                self._thread.start()
            self._changed.wait_for(lambda: self._is_there(groups), timeout=FIRST_S)
            return self._seen

    def answer(
        self, name: str, make: Callable[[PageLook], BaseModel], *, groups: bool = False
    ) -> tuple[PageLook, tuple[bytes, str] | None]:
        """A view as text with its tag, made once per look; None while nothing was seen."""
        seen = self.seen(groups=groups)
        if seen.status is None or (groups and seen.groups is None):
            return seen, None
        made = seen.made.get(name)
        if made is None:
            text = make(seen).model_dump_json().encode()
            made = (text, hashlib.sha256(text).hexdigest()[:20])
            with self._changed:
                seen.made[name] = made
                while len(seen.made) > MOST_MADE:
                    del seen.made[next(iter(seen.made))]
        return seen, made

    def report(self, session: str) -> str:
        """The report of one day as HTML, made anew. Raises `NoWarehouse`, `NothingYet`."""
        return report_html(Looker(self._load()).look(session))

    def _is_there(self, groups: bool) -> bool:
        seen = self._seen
        if seen.status is None or (groups and seen.groups is None):
            return self._fresh and seen.problem is not None
        return self._fresh

    def _go(self) -> None:
        while True:
            began = time.monotonic()
            found = self._look()
            took = time.monotonic() - began
            with self._changed:
                self._seen, self._fresh = found, True
                self._changed.notify_all()
                rest_s = self._every_s if found.problem is None else AGAIN_S
                self._changed.wait(max(rest_s - took, SHARE * took))
                if time.monotonic() - self._asked_s > IDLE_S:
                    self._thread = None
                    return

    def _look(self) -> PageLook:
        before = self._seen
        try:
            return self._whole_look(before)
        except SettingsError as error:
            problem = WatchProblem("settings", str(error))
        except NoWarehouse as error:
            problem = WatchProblem("no warehouse", str(error))
        except NothingYet as error:
            problem = WatchProblem("empty", str(error))
        except Exception as error:  # the page must say so; what follows is the next look
            problem = WatchProblem("failed", f"{type(error).__name__}: {error}")
            if problem != before.problem:  # the same again need not be told every few seconds
                log.exception("spillway's tables could not be looked at")
        # Whatever it was, begin anew: files may have been replaced, settings mended.
        self._looker = self._settings = None
        return replace(before, problem=problem, made=before.made)

    def _whole_look(self, before: PageLook) -> PageLook:
        if self._settings is None:
            self._settings = self._load()
        settings = self._settings
        if self._looker is None:
            self._looker = Looker(settings)
        status = self._looker.look()
        warehouse, memory = self._looker.warehouse, self._looker.memory
        assert warehouse is not None  # a look has opened them
        assert memory is not None
        model = memory.model
        assert model is not None
        groups = before.groups
        if time.monotonic() - self._groups_asked_s > IDLE_S:
            groups = None
        elif groups is None or model.entry != before.entry:
            groups = look_at_groups(warehouse, model, settings.spill)
        return PageLook(
            looked_ms=time.time_ns() // 1_000_000,
            status=status,
            entry=model.entry,
            points=before.points if model.entry == before.entry else _points(model),
            cleaning=self._cleaning(status, lambda date: cleaning(warehouse, date)),
            closes_ms=self._closes(settings, status),
            calendar=settings.session.calendar,
            zone=calendar.zone(settings.session.days),
            trigger_s=settings.stream.trigger_s,
            policy=settings.rebalance.policy,
            groups=groups,
        )

    def _cleaning(
        self, status: Status, read: Callable[[str], Sequence[Cleaning]]
    ) -> dict[str, Sequence[Cleaning]]:
        """When missing results were written; read again only while there are more."""
        sealed = [s for s in status.sessions if s.ended_at and s.results_cleanup][:MOST_CLEANED]
        known, self._cleaned = self._cleaned, {}
        for session in sealed:
            mark = _progress(session)
            old = known.get(session.session)
            steps = old[1] if old is not None and old[0] == mark else read(session.session)
            self._cleaned[session.session] = (mark, steps)
        return {date: steps for date, (_, steps) in self._cleaned.items()}

    def _closes(self, settings: Settings, status: Status) -> dict[str, int]:
        for date in (status.session, *(s.session for s in status.sessions[:MOST_CLEANED])):
            if date not in self._closes_ms:
                try:
                    self._closes_ms[date] = calendar.close_ms(settings.session.days, date)
                except calendar.CalendarError:  # a date that is no trading day has no close
                    continue
        return dict(self._closes_ms)


def _points(model: ReadModel) -> dict[str, Sequence[Point]]:
    dates = {date for point in model.tally.points for date in (point.session, *point.results)}
    return {date: points_of(date, model.tally.points) for date in dates}


def _progress(session: SessionStatus) -> object:
    return session.results_cleanup, session.cleanup_ranges_done, session.stage
