"""Links from a task to what it worked on. Airflow shows them as buttons of the task."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.models.taskinstancekey import TaskInstanceKey
    from airflow.sdk import BaseOperator

PAGE = "/plugin/spillway/spillway/"


class SessionLink(BaseOperatorLink):
    """The session's line on the page: counts, verdict, durations, its report."""

    name = "Session"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """The page at the session of the task."""
        return f"{PAGE}#sessions/{quote(str(getattr(operator, 'session', '')), safe='')}"


class DecisionsLink(BaseOperatorLink):
    """What was asked for and what became of it."""

    name = "Decisions"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002
        """The page's list of decisions."""
        return f"{PAGE}#decisions"


LINKS = [SessionLink(), DecisionsLink()]
