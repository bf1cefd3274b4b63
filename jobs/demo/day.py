"""The demo's day: broker, produce, stream, seal, cleanup, verify, and what came of it.

Model: a list of phases, each with its seconds, shown by a view while they pass. `produce` runs in
a thread here while `stream` runs as a process; the other phases follow one another. Every wait is
a loop that looks at `Stop`, so a signal is only a flag: nothing is interrupted half-way, and
what was started is always known and ended.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from jobs.demo.child import Child
from jobs.demo.place import Place
from jobs.kafka import broker
from jobs.kafka.client import cluster
from jobs.produce.run import produce
from jobs.produce.summary import Progress
from jobs.rebalance import controller
from jobs.report import Looker, NothingYet, Status, write_report
from jobs.report.words import span_text, times_text
from jobs.sealing import request_seal
from jobs.tables import NoWarehouse
from schemas.query import load_query
from schemas.scenario import Scenario

LOOK_EVERY_S = 0.5
DECIDE_EVERY_S = 3.0
"""How often the controller runs (in earnest Airflow runs it every minute)."""
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
    state: Literal["waiting", "running", "done", "failed"] = "waiting"
    detail: str = ""
    began: float = 0.0
    seconds: float = 0.0

    def lasted(self) -> float:
        """Seconds so far, or in all."""
        return time.monotonic() - self.began if self.state == "running" else self.seconds


@dataclass
class Outcome:
    """What the demo found."""

    session: str
    status: Status
    verdict: dict[str, Any]
    phases: list[Phase]

    @property
    def complete(self) -> bool:
        """Whether `verify` says that every result is there once."""
        return self.verdict.get("complete") is True


View = Callable[["Day"], None]


@dataclass
class Day:
    """One run of the demo. `view` is called often, from one thread."""

    place: Place
    scenario: Scenario
    stop: threading.Event
    view: View
    status: Status | None = None
    phases: dict[str, Phase] = field(default_factory=dict)
    _children: list[Child] = field(default_factory=list)
    _looked: float = 0.0
    _decided: float = 0.0

    def __post_init__(self) -> None:
        self.session = self.scenario.start.date().isoformat()
        self.query = load_query(self.place.settings.query)
        self._looker = Looker(self.place.settings)
        for name, says in (
            ("broker", "start Kafka"),
            ("produce", "send the day's messages"),
            ("stream", "join with too little memory, until the seal"),
            ("cleanup", "append what is missing"),
            ("verify", "prove the day complete"),
        ):
            self.phases[name] = Phase(name, says)

    def run(self) -> Outcome:
        """The whole day. Raises `Stopped`, `PhaseFailed`, or what a part raises; ends all."""
        producer = threading.Thread(target=self._produce, name="produce", daemon=True)
        try:
            with self._phase("broker"):
                self._start_broker()
            with self._phase("produce", leave_open=True), self._phase("stream"):
                producer.start()
                self._stream(producer)
            with self._phase("cleanup") as phase:
                self._command(phase, "cleanup", "--session", self.session, "--json")
            with self._phase("verify") as phase:
                verdict = self._verify(phase)
            status = self._looker.look(self.session)
            return Outcome(self.session, status, verdict, list(self.phases.values()))
        finally:
            self.stop.set()
            for child in self._children:
                child.end()
            if producer.ident is not None:
                producer.join(10.0)
            broker.stop(self.place.kafka)

    # ------------------------------------------------------------------ phases

    @contextmanager
    def _phase(self, name: str, *, leave_open: bool = False) -> Iterator[Phase]:
        self._check()
        phase = self.phases[name]
        phase.state, phase.began = "running", time.monotonic()
        self.view(self)
        try:
            yield phase
        except BaseException:
            if phase.state == "running":
                phase.seconds, phase.state = phase.lasted(), "failed"
            self.view(self)
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
        """In a thread of its own: the messages, as fast as they can be made."""
        phase = self.phases["produce"]

        def progress(now: Progress) -> None:
            self._check()
            phase.detail = f"{now.rows:,} of {now.total:,} rows, {now.rows_per_s:,.0f}/s"

        try:
            servers = self.place.settings.kafka.bootstrap_servers
            summary = produce(self.scenario, servers, speed=None, processes=1, progress=progress)
        except Stopped:
            phase.seconds, phase.state = phase.lasted(), "failed"
            return
        except Exception as error:  # noqa: BLE001 - told by the thread that waits for it
            phase.detail = f"{type(error).__name__}: {error}"
            phase.seconds, phase.state = phase.lasted(), "failed"
            return
        phase.detail = f"{summary.rows:,} rows"
        phase.seconds, phase.state = phase.lasted(), "done"

    def _stream(self, producer: threading.Thread) -> None:
        """Stream from the beginning, seal as soon as all is sent, wait for the end."""
        phase, sent = self.phases["stream"], self.phases["produce"]
        child = self._start("stream", "--until-sealed", self.session)
        sealed = False
        while child.poll() is None:
            self._wait()
            if sent.state == "failed":
                raise PhaseFailed(f"producing failed: {sent.detail}")
            if self.status is not None:
                phase.detail = self._stream_detail(self.status)
                self._decide(self.status)
                if sent.state == "done" and not sealed:
                    request_seal(
                        self.place.settings, self.query, self.session, "now", "demo", "demo"
                    )
                    sealed = True
        self._ended(child)
        if sent.state != "done":
            raise PhaseFailed("the stream ended before all messages were sent")
        producer.join()

    def _decide(self, status: Status) -> None:
        """Run the controller, as `spillway rebalance` does."""
        now = time.monotonic()
        if status.epoch < 0 or status.session != self.session:
            return
        if now - self._decided >= DECIDE_EVERY_S:
            self._decided = now
            settings = self.place.settings
            controller.run(settings, settings.rebalance.policy, "demo")

    def _stream_detail(self, status: Status) -> str:
        session = status.session_of(self.session)
        if session is None or status.epoch < 0:
            return "starting Spark"
        return (
            f"{sum(session.rows_in.values()):,} rows, {session.results_run_time:,} results, "
            f"{times_text(session.spills, 'spill')}, {times_text(session.moved, 'group')} moved"
        )

    def _verify(self, phase: Phase) -> dict[str, Any]:
        child = self._start("verify", "--session", self.session, "--json")
        while child.poll() is None:
            self._wait()
        code = child.poll()
        lines = child.output().strip().splitlines()
        if code not in (0, 1) or not lines:
            self._ended(child)
        verdict: dict[str, Any] = json.loads(lines[-1])
        phase.detail = "complete" if verdict["complete"] else "NOT complete"
        return verdict

    def _command(self, phase: Phase, *arguments: str) -> None:
        child = self._start(*arguments)
        while child.poll() is None:
            self._wait()
            phase.detail = self._cleanup_detail()
        self._ended(child)
        self._look()
        phase.detail = self._cleanup_detail()

    def _cleanup_detail(self) -> str:
        session = self.status.session_of(self.session) if self.status is not None else None
        if session is None or session.cleanup_ranges is None:
            return ""
        return (
            f"{session.cleanup_ranges_done} of {session.cleanup_ranges} hash ranges, "
            f"{session.results_cleanup or 0:,} results"
        )

    # ------------------------------------------------------------------ children

    def _start(self, *arguments: str) -> Child:
        self._check()
        child = Child(arguments[0], arguments, self.place.config, self.place.logs)
        self._children.append(child)
        return child

    def _ended(self, child: Child) -> None:
        if child.poll() != 0:
            raise PhaseFailed(
                f"{child.name} ended with code {child.poll()} ({child.log}):\n{child.complaint()}"
            )

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


def write_outcome(outcome: Outcome, place: Place) -> None:
    """The HTML report of the demo's day."""
    rows = [(f"demo: {p.name}", span_text(p.seconds)) for p in outcome.phases]
    write_report(outcome.status, place.report, rows)
