"""What every demo day is made of: phases that are shown while they pass, a broker, a producer.

Model: a list of phases, each with its seconds. `produce` runs in a thread of its own; the other
phases follow one another. Every wait is a loop that looks at `stop`, so a signal is only a flag:
nothing is interrupted half-way, and what was started is always known and ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from spillway.demo.place import Place
from spillway.kafka import broker
from spillway.kafka.client import cluster
from spillway.produce.run import produce
from spillway.produce.summary import ProduceProgress
from spillway.report.looking import Looker
from spillway.report.model import Status
from spillway.report.words import times_text
from spillway.tables import NothingYet, NoWarehouse
from spillway_schemas.query import load_query
from spillway_schemas.scenario import Scenario

LOOK_EVERY_S = 0.5
POLL_S = 0.05


class Stopped(Exception):
    """Somebody wants the demo to end."""


class PhaseFailed(RuntimeError):
    """A phase did not end well; the message has the end of its log."""


@dataclass
class Phase:
    """One part of the day."""

    name: str
    says: str
    state: Literal["waiting", "running", "done", "failed", "stopped"] = "waiting"
    detail: str = ""
    began: float = 0.0
    seconds: float = 0.0

    def lasted(self) -> float:
        """Seconds so far, or in all."""
        return time.monotonic() - self.began if self.state == "running" else self.seconds


@dataclass
class PhaseOutcome:
    """What the demo found."""

    session: str
    status: Status
    verdict: dict[str, Any]
    phases: list[Phase]

    @property
    def complete(self) -> bool:
        """Whether `verify` says that every result is there once."""
        return self.verdict.get("complete") is True


View = Callable[["DemoDay"], None]


@dataclass
class DemoDay:
    """One run of a demo. `view` is called often, from one thread."""

    PHASES: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Names of the phases, and what each does."""

    place: Place
    scenario: Scenario
    stop: threading.Event
    view: View
    status: Status | None = None
    phases: dict[str, Phase] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What a person wants to know while it runs: addresses, passwords."""
    _looked: float = 0.0

    def __post_init__(self) -> None:
        self.session = self.scenario.start.date().isoformat()
        self.query = load_query(self.place.settings.query)
        self._looker = Looker(self.place.settings)
        self._producer = threading.Thread(target=self._produce, name="produce", daemon=True)
        self.phases = {name: Phase(name, says) for name, says in self.PHASES}

    @contextmanager
    def run(self) -> Iterator[PhaseOutcome]:
        """The whole day; what it started is up until the block ends, and ended then.

        Raises `Stopped`, `PhaseFailed`, or what a part raises.
        """
        try:
            yield self._day()
        finally:
            self.stop.set()
            self._end()

    def _day(self) -> PhaseOutcome:
        raise NotImplementedError

    @property
    def speed(self) -> float | None:
        """How much faster than the scenario's own time rows are sent; None: at once."""
        return None

    def _end(self) -> None:
        """End what was started; `stop` is set."""
        if self._producer.ident is not None:
            self._producer.join(10.0)
        broker.stop(self.place.kafka)

    @contextmanager
    def _phase(self, name: str, *, leave_open: bool = False) -> Iterator[Phase]:
        self._check()
        phase = self.phases[name]
        phase.state, phase.began = "running", time.monotonic()
        self.view(self)
        try:
            yield phase
        except BaseException as error:
            # A Ctrl-C in the terminal reaches what the phase has started, too: that fails then.
            stopped = self.stop.is_set()
            if phase.state == "running":
                phase.seconds, phase.state = phase.lasted(), "stopped" if stopped else "failed"
            self.view(self)
            if stopped and isinstance(error, Exception):
                raise Stopped from error
            raise
        if not leave_open:
            self._done(phase)

    def _done(self, phase: Phase) -> None:
        phase.seconds, phase.state = phase.lasted(), "done"
        self.view(self)

    def _check(self) -> None:
        if self.stop.is_set():
            raise Stopped

    def _start_broker(self) -> None:
        settings = self.place.settings
        port = int(settings.kafka.bootstrap_servers.rpartition(":")[2])
        try:
            broker.start(self.place.kafka, port, controller_port=broker.free_port())
        except broker.BrokerError:
            self._check()  # a Ctrl-C in the terminal reaches the tool that formats the storage too
            raise
        self._check()
        topics = {self.scenario.topic(s): self.scenario.partitions for s in self.scenario.streams}
        with cluster(settings.kafka.bootstrap_servers) as view:
            view.create_topics(topics)

    def _produce(self) -> None:
        """In a thread of its own."""
        phase = self.phases["produce"]

        def progress(now: ProduceProgress) -> None:
            self._check()
            phase.detail = f"{now.rows:,} of {now.total:,} rows, {now.rows_per_s:,.0f}/s"

        try:
            servers = self.place.settings.kafka.bootstrap_servers
            summary = produce(
                self.scenario, servers, speed=self.speed, processes=1, progress=progress
            )
        except Stopped:
            phase.seconds, phase.state = phase.lasted(), "stopped"
            return
        except Exception as error:  # noqa: BLE001 - told by the thread that waits for it
            phase.detail = f"{type(error).__name__}: {error}"
            phase.seconds, phase.state = phase.lasted(), "failed"
            return
        phase.detail = f"{summary.rows:,} rows"
        phase.seconds, phase.state = phase.lasted(), "done"

    def _stream_detail(self, status: Status) -> str:
        session = status.session_of(self.session)
        if session is None or status.epoch < 0:
            return "starting Spark"
        return (
            f"{sum(session.rows_in.values()):,} rows, {session.results_run_time:,} results, "
            f"{times_text(session.spills, 'spill')}, {times_text(session.moved, 'group')} moved"
        )

    def _cleanup_detail(self) -> str:
        session = self.status.session_of(self.session) if self.status is not None else None
        if session is None or session.cleanup_ranges is None:
            return ""
        return (
            f"{session.cleanup_ranges_done} of {session.cleanup_ranges} hash ranges, "
            f"{session.results_cleanup or 0:,} results"
        )

    def _until(
        self,
        condition: Callable[[], bool],
        seconds: float = float("inf"),
        every_s: float = 0.0,
    ) -> None:
        """Wait until a condition holds. Raises `PhaseFailed` when that takes too long."""
        until, asked = time.monotonic() + seconds, 0.0
        while True:
            if time.monotonic() >= asked + every_s:
                if condition():
                    return
                asked = time.monotonic()
            if asked > until:
                raise PhaseFailed(f"it was not there within {seconds:g} s")
            self._wait()

    def _wait(self) -> None:
        """A moment; looks at the warehouse now and then."""
        self._check()
        time.sleep(POLL_S)
        if time.monotonic() - self._looked >= LOOK_EVERY_S:
            self._look()
            self.view(self)

    def _look(self) -> None:
        self._looked = time.monotonic()
        try:
            self.status = self._looker.look()
        except (NoWarehouse, NothingYet):
            return  # the stream has not begun
