"""Operators that deal with the stream and its tables."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from spillway_airflow.alerts import tell
from spillway_airflow.command import CommandFailed
from spillway_airflow.launchers import Launcher, LaunchFailed, ProcessLauncher, launcher
from spillway_airflow.links import DecisionsLink, SparkLink
from spillway_airflow.operators.base import (
    BY,
    SpillwayOperator,
    close_delay_option,
    is_true,
)
from spillway_airflow.watch import Finding, held_intake, late_days, look_at_stream, stood_still
from spillway_schemas.exits import NOTHING_YET

if TYPE_CHECKING:
    from airflow.sdk import Context

OF_THE_HOST = frozenset({"memory", "state folder", "metrics"})
"""Doctor's checks that are about the host that the stream runs on, and no other."""


class TopicsOperator(SpillwayOperator):
    """See that the query's topics exist: make those that do not, change none that does.

    Gives each topic with its partitions, and whether it was made now, as its XCom.
    """

    def __init__(self, *, create: bool = True, **more: Any) -> None:
        """`create`: False: fail when one does not exist."""
        super().__init__(**more)
        self.create = create

    def execute(self, context: Context) -> Any:  # noqa: ARG002
        """Look, and make them."""
        return self.ask("topics", "--json", *(["--create"] if self.create else []))


class DoctorOperator(SpillwayOperator):
    """Check what the stream needs; fails with the checks that fail, and how to mend them.

    With a launcher that starts the stream on another host, what only that host knows (memory, the
    state folder, the port of its figures) does not count: the stream checks it when it starts.
    """

    def __init__(self, *, close_delay: timedelta | None = None, **more: Any) -> None:
        """`close_delay`: how long after a close the day is closed; at least `session.grace_s`."""
        super().__init__(**more)
        self.close_delay = close_delay

    def execute(self, context: Context) -> list[str]:  # noqa: ARG002
        """Check; what only warns, a line each."""
        code, checks = self.run_command("doctor", "--json", *close_delay_option(self.close_delay))
        if checks is None:
            raise self.failed(code)
        if not isinstance(launcher(self.config, self.section), ProcessLauncher):
            checks = [each for each in checks if each["name"] not in OF_THE_HOST]
        told: dict[str, list[str]] = {"ok": [], "warn": [], "fail": []}
        for each in checks:
            told[each["status"]].append(f"{each['name']}: {each['what']} -> {each['mend']}")
        if told["fail"]:
            raise AirflowException("\n".join(["the stream would not last the day:", *told["fail"]]))
        for line in told["warn"]:
            self.log.warning(line)
        return told["warn"]


class EnsureStreamOperator(SpillwayOperator):
    """Start the streaming service when it does not run, and wait until it works.

    It works when it has claimed the journal and, where rows wait, has committed an epoch since.
    When it works already nothing happens.
    """

    operator_extra_links = (SparkLink(),)

    def __init__(self, *, patience: timedelta = timedelta(minutes=5), **more: Any) -> None:
        """`patience`: how long it may take until it works."""
        super().__init__(**more)
        self.patience = patience

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        """Start and wait."""
        service = launcher(self.config, self.section)
        before = self.status()
        started = not service.is_running()
        if started:
            self.log.info(service.start())
        elif makes_progress(before):
            self.log.info("The stream runs already: nothing to do.")
            return {"started": False}
        else:
            self.log.info("The stream has been started, but does not work yet: waiting for it.")
        until = time.monotonic() + self.patience.total_seconds()
        told = ""
        while time.monotonic() < until:
            time.sleep(2.0)
            if isinstance(service, ProcessLauncher) and not service.is_running():
                raise LaunchFailed(f"the stream has ended:\n{service.tail()}")
            try:
                now = self.status()
            except CommandFailed as error:  # its tables may just be made
                told = f": {error}"
                continue
            told = ""
            if works(before, now) if started else makes_progress(now):
                self.log.info("The stream has taken over the journal.")
                return {"started": started}
        raise LaunchFailed(f"the stream did not begin to work within {self.patience}{told}")


def works(before: dict[str, Any] | None, now: dict[str, Any] | None) -> bool:
    """Whether a driver has claimed the journal since, and makes progress where rows wait."""
    if now is None or (before is not None and now["term"] <= before["term"]):
        return False
    if now["term"] == 0:
        return False
    waiting = now["lag_rows"] or 0
    return waiting == 0 or now["epoch"] > (-1 if before is None else before["epoch"])


FRESH_S = 60.0
"""An epoch no older than this shows that the stream makes progress."""


def makes_progress(now: dict[str, Any] | None) -> bool:
    """Whether a stream that runs has a journal, and no row waits or the last epoch is young."""
    if now is None or now["term"] == 0:
        return False
    age_s = now["last_epoch_age_s"]
    return not now["lag_rows"] or (age_s is not None and age_s < FRESH_S)


class StopStreamOperator(SpillwayOperator):
    """Stop the streaming service after its epoch. What it has journaled stays; nothing is lost."""

    def execute(self, context: Context) -> None:  # noqa: ARG002
        """Stop it, or say that it does not run."""
        self.log.info(launcher(self.config, self.section).stop())


TOLD = "told"
"""The XCom of the late days that `alert_command` was called for."""
MOST_TOLD = 1000


class StreamWatchOperator(SpillwayOperator):
    """Start a stream that is gone, restart one that stands still, report days that are late.

    Says what it saw; fails, after it has acted, when a day is not sealed or complete in time. A
    stream that cannot be started, stopped or asked for does not hide such days: both are told.
    `[spillway] alert_command` is called once for each such day and kind of lateness.
    """

    def __init__(
        self,
        *,
        calendar: str,
        stalled: timedelta = timedelta(minutes=2),
        starting: timedelta = timedelta(minutes=15),
        limit: timedelta = timedelta(hours=2),
        **more: Any,
    ) -> None:
        """`stalled`: how long the journal may stand still while rows wait; `starting`: the same
        until the first epoch of a stream that has begun, longer than it takes to read a day's state
        again; `limit`: how long after its close a day may take until it is sealed and proved
        complete."""
        super().__init__(**more)
        self.calendar = calendar
        self.stalled = stalled
        self.starting = starting
        self.limit = limit

    def execute(self, context: Context) -> list[str]:
        """Look and act. Raises `CommandFailed` when there is no status, `LaunchFailed`."""
        status = self.status()
        late = held_intake(status)
        late += late_days(
            status,
            now_ms=int(time.time() * 1000),
            closes_ms=self._closes(status),
            limit_s=self.limit.total_seconds(),
        )
        says = [each.says for each in late]
        try:
            self._alert(context, late)
        except RuntimeError as error:
            says.append(str(error))
        try:
            stream = self._tend(launcher(self.config, self.section), status)
        except (LaunchFailed, CommandFailed) as error:
            if not late:
                raise
            says.append(str(error))
        if late:
            raise AirflowFailException("; ".join(says))
        return [f"{stream.kind}: {stream.says}"]

    def _alert(self, context: Context, late: Sequence[Finding]) -> None:
        """Tell what no earlier run has told: each run that tells something keeps it as its XCom.

        Raises `RuntimeError` when the command fails; the next run tries it again.
        """
        if not late:
            return
        ti = context["ti"]
        told = ti.xcom_pull(key=TOLD, include_prior_dates=True, map_indexes=None) or []
        for each in late:
            name = f"{each.session} {each.kind}"
            if name not in told:
                asyncio.run(tell(f"{self.dag_id}: {each.says}", self.section))
                told = [*told, name][-MOST_TOLD:]
                ti.xcom_push(TOLD, told)

    def _tend(self, service: Launcher, status: dict[str, Any] | None) -> Finding:
        """Look at the stream, twice before it is restarted, and act."""
        found = self._look(service, status)
        if found.kind == "restart":
            self.log.info("%s; looking again in %s", found.says, self.stalled)
            time.sleep(self.stalled.total_seconds())
            now = self.status()
            found = self._look(service, now)
            if found.kind == "restart" and not stood_still(status, now):
                found = Finding("fine", f"the stream makes progress; {found.says}")
        self.log.info("%s: %s", found.kind, found.says)
        if found.kind == "restart":
            self.log.info(service.stop())
        if found.kind in ("start", "restart"):
            self.log.info(service.start())
        return found

    def _look(self, service: Launcher, status: dict[str, Any] | None) -> Finding:
        running = service.is_running()
        return look_at_stream(
            status,
            running=running,
            age_s=service.age_s() if running else None,
            stalled_s=self.stalled.total_seconds(),
            starting_s=self.starting.total_seconds(),
        )

    def _closes(self, status: dict[str, Any] | None) -> dict[str, int]:
        from spillway import calendar as exchange

        closes = {}
        for session in (each["session"] for each in (status or {}).get("sessions", ())):
            with contextlib.suppress(exchange.CalendarError):  # a day that is no trading day
                closes[session] = exchange.close_ms(self.calendar, session)
        return closes


class RebalanceOperator(SpillwayOperator):
    """Run the controller once. Skips while there is no warehouse or journal to decide on.

    Gives what was asked for and what was declined, with the reasons, as its XCom.
    """

    template_fields: Sequence[str] = (*SpillwayOperator.template_fields, "policy", "dry_run")
    operator_extra_links = (DecisionsLink(), SparkLink())

    def __init__(
        self, *, policy: str | None = None, dry_run: bool | str = False, **more: Any
    ) -> None:
        """`policy`: one of `rebalance.policy`'s, that setting when not given."""
        super().__init__(**more)
        self.policy = policy
        self.dry_run = dry_run

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        """Decide."""
        arguments = ["rebalance", "--json", "--by", BY]
        if self.policy and self.policy != "None":
            arguments += ["--policy", self.policy]
        if is_true(self.dry_run):
            arguments.append("--dry-run")
        code, found = self.run_command(*arguments)
        if code == NOTHING_YET:
            raise AirflowSkipException("there is no stream yet to decide for; see the log")
        if found is None:
            raise self.failed(code)
        for each in found["declined"]:
            self.log.info("no %s: %s", each["what"], each["why"])
        asked_for: dict[str, Any] = {
            "asked": len(found["asked"]),
            "refused": [
                each["outcome"]["reason"]
                for each in found["asked"]
                if not each["outcome"]["obeyed"]
            ],
            "declined": found["declined"],
        }
        return asked_for


class MaintenanceOperator(SpillwayOperator):
    """Tidy the tables up: drop what finished days need no longer, merge, delete. No Kafka topics.

    Gives the report as its XCom: per table what was dropped, merged and deleted, or would be.
    """

    template_fields: Sequence[str] = (
        *SpillwayOperator.template_fields,
        "dry_run",
        "keep_spilled_days",
        "keep_statistics_days",
    )

    def __init__(
        self,
        *,
        dry_run: bool | str = False,
        keep_spilled_days: int | str | None = None,
        keep_statistics_days: int | str | None = None,
        **more: Any,
    ) -> None:
        """Both days: those of `maintenance` in spillway's settings when not given."""
        super().__init__(**more)
        self.dry_run = dry_run
        self.keep_spilled_days = keep_spilled_days
        self.keep_statistics_days = keep_statistics_days

    def execute(self, context: Context) -> Any:  # noqa: ARG002
        """Tidy up."""
        arguments = ["maintain", "--json"]
        for option in ("keep_spilled_days", "keep_statistics_days"):
            if (days := getattr(self, option)) not in (None, "", "None"):
                arguments += [f"--{option.replace('_', '-')}", str(days)]
        if is_true(self.dry_run):
            arguments.append("--dry-run")
        report = self.ask(*arguments)
        for note in report["notes"]:
            self.log.warning(note)
        return report
