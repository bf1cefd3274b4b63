"""Operators of the trading day. Each calls the command line in a process of its own.

Safe to retry, to clear and to run twice at once: what they call is (a seal is answered and not
repeated, cleanup appends what is missing exactly once, a stream that runs is left alone).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from spillway_airflow.alerts import tell
from spillway_airflow.command import CommandFailed, Running, setting
from spillway_airflow.launchers import Launcher, LaunchFailed, ProcessLauncher, launcher
from spillway_airflow.links import DecisionsLink, ReportLink, SessionLink, SparkLink
from spillway_airflow.triggers import SealedTrigger, sealed
from spillway_airflow.watch import Finding, late_days, look_at_stream, stood_still

if TYPE_CHECKING:
    from airflow.sdk import Context

BY = "airflow"
"""Who asks, as the journal has it."""
SESSION = "{{ partition_key or params.get('session') or '' }}"
"""The run's session: its partition, or what it was triggered with. Empty: see `SessionOperator`."""
NOTHING_YET = 4
"""The exit code of a command for which there is no warehouse or no journal yet."""
OF_THE_HOST = frozenset({"memory", "state folder", "metrics"})
"""Doctor's checks that are about the host that the stream runs on, and no other."""


class SpillwayOperator(BaseOperator):
    """Base: a settings file, and a command that is ended when the task is."""

    template_fields: Sequence[str] = ("config",)

    def __init__(self, *, config: str | None = None, **more: Any) -> None:
        """`config`: spillway's settings file; `[spillway] config` of Airflow when not given."""
        super().__init__(**more)
        self.config = config
        self._running: Running | None = None

    def ask(self, *arguments: str) -> Any:
        """Run a command that must succeed; what it printed as JSON. Its output is the log."""
        code, found = self.run_command(*arguments)
        if code != 0:
            raise self.failed(code)
        return found

    def failed(self, code: int) -> CommandFailed:
        """The error that the last command's exit code stands for, with what it printed last."""
        assert self._running is not None
        return self._running.failed(code)

    def status(self) -> dict[str, Any] | None:
        """`spillway status`; None while there is no warehouse, or nothing in its journal.

        Raises `CommandFailed` when it cannot be told: settings that are wrong, a damaged table.
        """
        code, found = self.run_command("status", "--json", tell=self.log.debug)
        if code == 0:
            status: dict[str, Any] = found
            return status
        if code == NOTHING_YET:
            return None
        raise self.failed(code)

    def run_command(
        self, *arguments: str, tell: Callable[[str], None] | None = None
    ) -> tuple[int, Any]:
        """Run a command; its exit code and what it printed as JSON. Its output is the log's."""
        self._running = Running(arguments, tell or self.log.info, config=self.config)
        try:
            return self._running.wait(), self._running.json()
        finally:
            self._running.end()

    def on_kill(self) -> None:
        """End the command: SIGTERM, then SIGKILL. A killed worker takes it along anyway."""
        if self._running is not None:
            self._running.end()


def _is_true(rendered: bool | str) -> bool:
    """A parameter of the run: a template gives its text."""
    return rendered in (True, "True", "true")


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

    def execute(self, context: Context) -> list[str]:  # noqa: ARG002
        """Check; what only warns, a line each."""
        code, checks = self.run_command("doctor", "--json")
        if checks is None:
            raise self.failed(code)
        if not isinstance(launcher(self.config), ProcessLauncher):
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
        service = launcher(self.config)
        before = self.status()
        started = not service.is_running()
        if started:
            self.log.info(service.start())
        elif gets_on(before):
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
            if works(before, now) if started else gets_on(now):
                self.log.info("The stream has taken over the journal.")
                return {"started": started}
        raise LaunchFailed(f"the stream did not begin to work within {self.patience}{told}")


def works(before: dict[str, Any] | None, now: dict[str, Any] | None) -> bool:
    """Whether a driver has claimed the journal since, and gets on where rows wait."""
    if now is None or (before is not None and now["term"] <= before["term"]):
        return False
    if now["term"] == 0:
        return False
    waiting = now["lag_rows"] or 0
    return waiting == 0 or now["epoch"] > (-1 if before is None else before["epoch"])


FRESH_S = 60.0
"""An epoch so young says that the stream gets on."""


def gets_on(now: dict[str, Any] | None) -> bool:
    """Whether a stream that runs has a journal, and no row waits or the last epoch is young."""
    if now is None or now["term"] == 0:
        return False
    age_s = now["last_epoch_age_s"]
    return not now["lag_rows"] or (age_s is not None and age_s < FRESH_S)


class StopStreamOperator(SpillwayOperator):
    """Stop the streaming service after its epoch. What it has journaled stays; nothing is lost."""

    def execute(self, context: Context) -> None:  # noqa: ARG002
        """Stop it, or say that it does not run."""
        self.log.info(launcher(self.config).stop())


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
        late = late_days(
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
            stream = self._tend(launcher(self.config), status)
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
                asyncio.run(tell(f"{self.dag_id}: {each.says}"))
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
                found = Finding("fine", f"the stream gets on; {found.says}")
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
        from jobs import calendar as exchange

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
        if _is_true(self.dry_run):
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
        if _is_true(self.dry_run):
            arguments.append("--dry-run")
        report = self.ask(*arguments)
        for note in report["notes"]:
            self.log.warning(note)
        return report


NAME_IT = "give the run a session's date, YYYY-MM-DD, as partition key or parameter `session`"


class SessionOperator(SpillwayOperator):
    """Base: works on one session.

    A run that names none, as one by hand may, stands for the last session that had closed when the
    run was made: the same for all of its tasks, whenever they run.
    """

    template_fields: Sequence[str] = (*SpillwayOperator.template_fields, "session")
    operator_extra_links = (SessionLink(), ReportLink())

    def __init__(self, *, session: str = SESSION, calendar: str = "XNYS", **more: Any) -> None:
        """`session`: its date; `calendar`: the exchange, for a run that names no session."""
        super().__init__(**more)
        self.session = session
        self.calendar = calendar

    def render_template_fields(self, context: Context, jinja_env: Any = None) -> None:
        """As any operator; and a session that was not given is found, so that Airflow shows it.

        Raises `AirflowFailException` when the exchange's calendar knows none.
        """
        super().render_template_fields(context, jinja_env)
        if self.session:
            return
        from jobs import calendar as exchange

        made = context["dag_run"].run_after
        try:
            found = exchange.last_closed(self.calendar, int(made.timestamp() * 1000))
        except exchange.CalendarError as error:
            raise AirflowFailException(f"{NAME_IT}: {error}") from error
        if found is None:
            raise AirflowFailException(f"{NAME_IT}: {self.calendar} had not closed by {made}")
        self.session = found.date
        self.log.info("No session was named: %s, the last that had closed.", found.date)


class SealOperator(SessionOperator):
    """Ask for the end of a session's input. Asking again is answered, not repeated."""

    operator_extra_links = (*SessionOperator.operator_extra_links, SparkLink())
    template_fields: Sequence[str] = (*SessionOperator.template_fields, "at", "reason")

    def __init__(self, *, at: str = "close", reason: str = "", **more: Any) -> None:
        """`at`: `close` (the session's close plus grace), `now`, or a time."""
        super().__init__(**more)
        self.at = at
        self.reason = reason

    def execute(self, context: Context) -> None:
        """Seal."""
        status = self.status()
        if status is not None and (first := before_all(status, self.session)):
            raise AirflowSkipException(f"the warehouse begins with {first}: nothing to close")
        self.ask(
            "seal",
            *("--session", self.session, "--at", self.at),
            *("--reason", self.reason or context["dag"].dag_id, "--by", BY),
        )


def before_all(status: dict[str, Any], session: str) -> str | None:
    """The warehouse's first session, when that comes after the one asked for."""
    first: str = min(each["session"] for each in status["sessions"])
    return first if session < first else None


class WaitForSealOperator(SessionOperator):
    """Wait until a session is sealed, without holding a worker."""

    operator_extra_links = (*SessionOperator.operator_extra_links, SparkLink())

    def __init__(self, *, every_s: float = 10.0, **more: Any) -> None:
        """`every_s`: how often the journal is looked at."""
        super().__init__(**more)
        self.every_s = every_s

    def execute(self, context: Context) -> Any:  # noqa: ARG002
        """Look once; defer when it is not sealed yet."""
        try:
            status = self.status()
        except CommandFailed as error:  # the trigger looks again until it can be told
            self.log.warning("%s", error)
            status = None
        if status is not None and (found := sealed(status, self.session)):
            return found
        self.defer(
            trigger=SealedTrigger(self.session, self.config or setting("config"), self.every_s),
            method_name="resume",
            timeout=self.execution_timeout,
        )
        return None

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """The trigger has fired."""
        self.log.info("%s was sealed at %s", event["session"], event["ended_at"])
        return event


class CleanupOperator(SessionOperator):
    """Append a sealed session's missing results, each once.

    Its Spark is a process of its own that ends with the task, whatever ends that; run again, it
    goes on where it was. One that could not be ended loses its lease to the next. The log says how
    far it is.
    """

    def execute(self, context: Context) -> Any:  # noqa: ARG002
        """Clean up."""
        return self.ask("cleanup", "--session", self.session, "--json")


class VerifyOperator(SessionOperator):
    """Prove a session complete; fails without a retry when it is not, and says what is missing."""

    def execute(self, context: Context) -> Any:  # noqa: ARG002
        """Verify."""
        code, verdict = self.run_command("verify", "--session", self.session, "--json")
        if verdict is None or code not in (0, 1):
            raise self.failed(code)
        verdict.pop("details", None)
        if not verdict["complete"]:
            raise AirflowFailException(
                f"{self.session} is not complete: {verdict['missing']} results are missing, "
                f"{verdict['doubled']} doubled, of {verdict['expected']}: {json.dumps(verdict)}"
            )
        return verdict
