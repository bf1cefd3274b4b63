"""Operators that bring one session to its end: seal, wait, clean up, prove."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from spillway_airflow.command import CommandFailed
from spillway_airflow.links import ReportLink, SessionLink, SparkLink
from spillway_airflow.operators.base import BY, SpillwayOperator, WrongUsage, close_delay_option
from spillway_airflow.triggers import SealedTrigger, sealed, waits_for
from spillway_schemas.session_date import SessionDateError, session_date

if TYPE_CHECKING:
    from airflow.sdk import Context

SESSION = "{{ partition_key or params.get('session') or '' }}"
"""The run's session: its partition, or what it was triggered with. Empty: see `SessionOperator`."""
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

        Raises `AirflowFailException` when the exchange's calendar knows none, and for a session
        that is not written `YYYY-MM-DD`.
        """
        super().render_template_fields(context, jinja_env)
        if self.session:
            try:
                session_date(self.session)
            except SessionDateError as error:
                raise AirflowFailException(f"{error}; {NAME_IT}") from error
            return
        from spillway import calendar as exchange

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

    def __init__(
        self,
        *,
        at: str = "close",
        reason: str = "",
        close_delay: timedelta | None = None,
        **more: Any,
    ) -> None:
        """`at`: `close` (the session's close plus grace), `now`, or a time; `close_delay`: how long
        after the close the DAG runs, which must be `session.grace_s` at least."""
        super().__init__(**more)
        self.at = at
        self.reason = reason
        self.close_delay = close_delay

    def execute(self, context: Context) -> None:
        """Seal."""
        status = self.status()
        if status is not None and (first := before_all(status, self.session)):
            raise AirflowSkipException(f"the warehouse begins with {first}: nothing to close")
        self.ask(
            "seal",
            *("--session", self.session, "--at", self.at),
            *("--reason", self.reason or context["dag"].dag_id, "--by", BY),
            *(close_delay_option(self.close_delay) if self.at == "close" else []),
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
        except WrongUsage:
            raise
        except CommandFailed as error:  # the trigger looks again until it can be told
            self.log.warning("%s", error)
            status = None
        if status is not None and (found := sealed(status, self.session)):
            return found
        if status is not None:
            self.log.info("%s", waits_for(status, self.session))
        self.log.info(
            "%s is not sealed yet. The triggerer looks every %g s; no worker is held meanwhile.",
            self.session,
            self.every_s,
        )
        self.defer(
            trigger=SealedTrigger(self.session, self.config, self.every_s, self.section),
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
    """Prove a session complete; fails without a retry when it is not, and says what is missing.

    Is skipped where input is lost and somebody has accepted that: then no day is complete, and
    `outlets` hear of none.
    """

    def execute(self, context: Context) -> Any:  # noqa: ARG002
        """Verify."""
        asked = ("verify", "--session", self.session, "--json")
        code, verdict = self.run_command(*asked, tell=self._tell)
        if verdict is None or code not in (0, 1):
            raise self.failed(code)
        details = verdict.pop("details", {})
        if "loss" in details:
            # Somebody knows, and nothing can be done: the run ends, but no day is complete.
            (problem,) = details["problems"]
            raise AirflowSkipException(f"{self.session} cannot be proved complete: {problem}")
        parts = [f"{verdict['run_time']:,} at run time", f"{verdict['cleanup']:,} by cleanup"]
        if "corrections" in details:
            parts.append(f"{details['corrections']['results']:,} by corrections")
        if not verdict["complete"]:
            for line in what_is_wrong(details):
                self.log.error("%s", line)
            raise AirflowFailException(
                f"{self.session} is not complete: of {verdict['expected']:,} results "
                f"{verdict['missing']:,} are missing and {verdict['doubled']:,} doubled "
                f"({', '.join(parts)}). When "
                "the task `cleanup` has not succeeded, clear that; else see the runbook, "
                "`verify says 1`. Clearing this task again does not help"
            )
        if "stands" in details:
            self.log.info("%s", details["stands"])
        self.log.info(
            "%s is complete: %s results, %s and %s; none missing, none doubled",
            self.session,
            f"{verdict['expected']:,}",
            ", ".join(parts[:-1]),
            parts[-1],
        )
        return verdict

    def _tell(self, line: str) -> None:
        """The steps are the log's; the verdict is told in words, not as a line of JSON."""
        (self.log.debug if line.startswith("{") else self.log.info)(line)


def what_is_wrong(details: dict[str, Any]) -> Iterator[str]:
    """A verdict's problems and the combinations that are missing or doubled, a line each."""
    yield from details.get("problems", ())
    for each in details.get("differences", ()):
        key = ", ".join(f"{name} {value}" for name, value in each["key"].items())
        rows = ", ".join(
            f"{stream} {place['partition']}:{place['offset']}"
            for stream, place in each["coordinates"].items()
        )
        yield f"{key}: {rows} (partition:offset): found {each['found']}, not {each['expected']}"
