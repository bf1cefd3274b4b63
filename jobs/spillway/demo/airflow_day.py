"""The demo's day as its users know it: Airflow opens it, rebalances, closes it and proves it.

The demo is only the outer world: it starts a broker and Airflow, sends the messages, and presses
the buttons that a clock or a person would. The exchange is one that never closes, so that the day
may be lived at any hour; the session is the one that the wall clock is in, whatever the messages
say.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

from spillway.demo import airflow
from spillway.demo.child import end_session
from spillway.demo.phases import DemoDay, Phase, PhaseFailed, PhaseOutcome

DAY_S = 75.0
"""How long the messages take to be sent: long enough to watch groups move and spill."""
REBALANCE_EVERY_S = 10
START_S = 240.0
RUN_S = 900.0
"""Of a DAG, on the slowest machine: how far it is is told all the time."""
DAGS = ("market_open", "rebalance", "market_close")
IDLE = (None, "success")
PAGE = "/plugin/spillway/spillway/"


@dataclass
class AirflowDay(DemoDay):
    """As `spillway.demo.day.Day`, but by Airflow's hand."""

    PHASES: ClassVar[tuple[tuple[str, str], ...]] = (
        ("broker", "start Kafka"),
        ("airflow", "start Airflow: scheduler, triggerer, API server"),
        ("market_open", "Airflow starts the streaming job"),
        ("produce", "send the day's messages"),
        ("stream", "join with too little memory; Airflow rebalances"),
        ("market_close", "Airflow seals, cleans up, proves the day complete"),
    )

    _airflow: airflow.Airflow | None = None

    @property
    def speed(self) -> float:
        """The scenario's day in `DAY_S`."""
        volumes = map(self.scenario.volume, self.scenario.streams)
        longest = max(v.duration_s or (v.rows or 0) / v.rate for v in volumes)
        return max(longest / DAY_S, 1.0)

    def _day(self) -> PhaseOutcome:
        with self._phase("broker"):
            self._start_broker()
        with self._phase("airflow") as phase:
            server = self._start_airflow(phase)
        with self._phase("market_open") as phase:
            self._run_dag(phase, server, "market_open")
        with self._phase("produce", leave_open=True), self._phase("stream"):
            self._producer.start()
            self._until(self._all_sent)
        with self._phase("market_close") as phase:
            run = self._run_dag(
                phase, server, "market_close", self.session, at="now", reason="demo: all is sent"
            )
            verdict = server.xcom("market_close", run, "verify")
            phase.detail = "complete" if verdict["complete"] else "NOT complete"
        status = self._looker.look(self.session)
        return PhaseOutcome(self.session, status, verdict, list(self.phases.values()))

    def _start_airflow(self, phase: Phase) -> airflow.Airflow:
        place = self.place
        server = self._airflow = airflow.start(
            place.airflow,
            {
                "SPILLWAY__CONFIG": str(place.config),
                "SPILLWAY__SERVICE_FOLDER": str(place.service),
                "SPILLWAY__CALENDAR": "24/7",
                "SPILLWAY__START_DATE": datetime.now(UTC).isoformat(),
                "SPILLWAY__REBALANCE_EVERY_S": str(REBALANCE_EVERY_S),
                "SPILLWAY__CLOSE_DELAY_S": "86400",
            },
            users="admin:admin,viewer:viewer",
        )
        phase.detail = f"its log is {server.log_file}"
        self._until(server.is_healthy, START_S, every_s=1.0)
        server.login()
        self._until(lambda: server.knows(*DAGS), START_S, every_s=1.0)
        server.unpause(*DAGS)
        phase.detail = ""
        self.notes += [
            f"page     {server.url}{PAGE}",
            f"user     admin, password {server.password()}   (looks only: viewer, password "
            f"{server.password('viewer')})",
        ]
        return server

    def _all_sent(self) -> bool:
        sent, phase = self.phases["produce"], self.phases["stream"]
        if sent.state == "failed":
            raise PhaseFailed(f"producing failed: {sent.detail}")
        if self.status is None:
            return False
        self.session = self.status.session
        phase.detail = self._stream_detail(self.status)
        return sent.state == "done"

    def _run_dag(
        self,
        phase: Phase,
        server: airflow.Airflow,
        dag: str,
        partition: str | None = None,
        **conf: str,
    ) -> str:
        """Trigger a DAG and wait until its run has succeeded; the run's id."""
        run = server.trigger(dag, partition, **conf)

        def is_over() -> bool:
            tasks = server.tasks(dag, run)
            under_way = [
                f"{task} ({state})"
                for task, state in tasks.items()
                if state not in (None, "success")
            ]
            phase.detail = ", ".join([*under_way, self._cleanup_detail()]).strip(", ")
            return server.state(dag, run) in airflow.OVER

        self._until(is_over, RUN_S, every_s=1.0)
        phase.detail = ""
        if server.state(dag, run) != "success":
            failed = [task for task, state in server.tasks(dag, run).items() if state == "failed"]
            told = "\n".join(server.log(dag, run, task)[-2000:] for task in failed[:1])
            raise PhaseFailed(f"{dag}: {', '.join(failed)} failed ({server.url}):\n{told}")
        return run

    def _end(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            end_session(int(json.loads((self.place.service / "stream.json").read_text())["pid"]))
        if self._airflow is not None:
            self._airflow.end()
        super()._end()
