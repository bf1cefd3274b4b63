"""The demo's day without Airflow: broker, produce, stream, seal, cleanup, verify."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

from spillway.clock import system_clock
from spillway.demo.child import Child
from spillway.demo.phases import DemoDay, Phase, PhaseFailed, PhaseOutcome
from spillway.rebalance import controller
from spillway.report.model import Status
from spillway.sealing import request_seal

DECIDE_EVERY_S = 3.0
"""How often the controller runs (in earnest Airflow runs it every minute)."""


@dataclass
class LocalDay(DemoDay):
    """`produce` and `stream` run at the same time; the rest follows one another."""

    PHASES: ClassVar[tuple[tuple[str, str], ...]] = (
        ("broker", "start Kafka"),
        ("produce", "send the day's messages"),
        ("stream", "join with too little memory, until the seal"),
        ("cleanup", "append what is missing"),
        ("verify", "prove the day complete"),
    )

    _children: list[Child] = field(default_factory=list)
    _decided: float = 0.0

    def _day(self) -> PhaseOutcome:
        with self._phase("broker"):
            self._start_broker()
        with self._phase("produce", leave_open=True), self._phase("stream"):
            self._producer.start()
            self._stream()
        with self._phase("cleanup") as phase:
            self._command(phase, "cleanup", "--session", self.session, "--json")
        with self._phase("verify") as phase:
            verdict = self._verify(phase)
        status = self._looker.look(self.session)
        return PhaseOutcome(self.session, status, verdict, list(self.phases.values()))

    def _end(self) -> None:
        for child in self._children:
            child.end()
        super()._end()

    def _stream(self) -> None:
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
                        self.place.settings,
                        self.session,
                        "now",
                        "demo",
                        "demo",
                        clock=system_clock,
                    )
                    sealed = True
        self._ended(child)
        if sent.state != "done":
            raise PhaseFailed("the stream ended before all messages were sent")
        self._producer.join()

    def _decide(self, status: Status) -> None:
        """Run the controller, as `spillway rebalance` does."""
        now = time.monotonic()
        if status.epoch < 0 or status.session != self.session:
            return
        if now - self._decided >= DECIDE_EVERY_S:
            self._decided = now
            settings = self.place.settings
            controller.run(settings, settings.rebalance.policy, "demo", clock=system_clock)

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
