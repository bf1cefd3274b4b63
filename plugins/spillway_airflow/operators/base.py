"""What every operator is: a command line in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from spillway_airflow.command import CommandFailed, Running
from spillway_airflow.sections import SPILLWAY, setting
from spillway_schemas.exits import NOTHING_YET, USAGE

BY = "airflow"
"""Who asks, as the journal has it."""


class WrongUsage(CommandFailed, AirflowFailException):
    """Settings or arguments are wrong: the task fails without a retry, which would find the same.

    The message says which settings file the command went by, and who named that.
    """


class SpillwayOperator(BaseOperator):
    """Base: a settings file, and a command that is ended when the task is."""

    template_fields: Sequence[str] = ("config",)

    def __init__(self, *, config: str | None = None, section: str = SPILLWAY, **more: Any) -> None:
        """Say which warehouse is worked on.

        `section`: of Airflow's configuration. `config`: spillway's settings file, that of the
        section when not given.
        """
        super().__init__(**more)
        self.config = config
        self.section = section
        self._running: Running | None = None

    def ask(self, *arguments: str) -> Any:
        """Run a command that must succeed; what it printed as JSON. Its output is the log."""
        code, found = self.run_command(*arguments)
        if code != 0:
            raise self.failed(code)
        return found

    def failed(self, code: int) -> CommandFailed:
        """The error that the last command's exit code stands for, with what it printed last.

        A `WrongUsage` where Airflow need not try again.
        """
        assert self._running is not None
        found = self._running.failed(code)
        return (
            WrongUsage(found.name, code, [*found.told, self._settings()])
            if code == USAGE
            else found
        )

    def _settings(self) -> str:
        """Which settings file a command goes by, and where that is said."""
        if self.config:
            return f"(settings: {self.config}, the task's `config`)"
        if found := setting("config", self.section):
            return f"(settings: {found}, by [{self.section}] config)"
        return f"(settings: spillway.toml, for [{self.section}] config names no other file)"

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
        self._running = Running(
            arguments, tell or self.log.info, config=self.config, section=self.section
        )
        try:
            return self._running.wait(), self._running.json()
        finally:
            self._running.end()

    def on_kill(self) -> None:
        """End the command: SIGTERM, then SIGKILL. A killed worker takes it along anyway."""
        if self._running is not None:
            self._running.end()


def close_delay_option(delay: timedelta | None) -> list[str]:
    """What tells spillway when the day is closed, which is no setting of its own."""
    return [] if delay is None else [f"--close-delay={delay.total_seconds()}"]


def is_true(rendered: bool | str) -> bool:
    """A parameter of the run: a template gives its text."""
    return rendered in (True, "True", "true")
