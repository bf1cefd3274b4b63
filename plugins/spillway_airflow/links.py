"""Links from a task to what it worked on. Airflow shows them as buttons of the task."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from spillway_airflow.sections import SPILLWAY, setting

if TYPE_CHECKING:
    from airflow.models.taskinstancekey import TaskInstanceKey
    from airflow.sdk import BaseOperator


def page(operator: BaseOperator) -> str:
    """Where Airflow shows the page of an operator's section."""
    name = section_of(operator)
    return f"/plugin/{name}/{name}/"


def section_of(operator: BaseOperator) -> str:
    """The section that an operator works for."""
    return str(getattr(operator, "section", SPILLWAY))


class SessionLink(BaseOperatorLink):
    """The session's line on the page: counts, verdict, durations, its report."""

    name = "Session"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """The page at the session of the task."""
        return f"{page(operator)}#sessions/{quote(str(getattr(operator, 'session', '')), safe='')}"


class ReportLink(BaseOperatorLink):
    """The session's report: figures and charts on one page."""

    name = "Report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """The report of the task's session."""
        session = quote(str(getattr(operator, "session", "")), safe="")
        return f"/{section_of(operator)}/report/{session}"


class SparkLink(BaseOperatorLink):
    """Spark's own page of the stream, where `[spillway] spark_ui` says that there is one."""

    name = "Spark UI"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """What is configured; nothing when nothing is."""
        return setting("spark_ui", section_of(operator)) or ""


class DecisionsLink(BaseOperatorLink):
    """What was asked for and what became of it."""

    name = "Decisions"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """The page's list of decisions."""
        return f"{page(operator)}#decisions"


LINKS = [SessionLink(), ReportLink(), SparkLink(), DecisionsLink()]
