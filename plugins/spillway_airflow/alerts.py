"""What happens when a day is late: an error in the log, and a command of yours."""

from __future__ import annotations

import asyncio
import logging
import shlex
from typing import Any

from spillway_airflow.command import command_shown, without
from spillway_airflow.sections import SPILLWAY, dag_id, setting

log = logging.getLogger(__name__)
ALERT_S = 60.0
"""How long the configured command may take."""


async def late(limit: str, section: str = SPILLWAY, context: dict[str, Any] | None = None) -> str:
    """A run has missed its deadline: tell it. Airflow calls this in the triggerer."""
    run = (context or {}).get("dag_run", {})
    which = run.get("partition_key") or run.get("dag_run_id") or "a run"
    dag = run.get("dag_id", dag_id("market_close", section))
    message = (
        f"{dag}: {which} was not done within {limit} "
        f"(it is {run.get('state', 'under way')}). Look at its tasks, then at `spillway status`"
    )
    await tell(message, section)
    return message


async def tell(message: str, section: str = SPILLWAY) -> None:
    """Log an error, and run the section's `alert_command` with the message.

    The command is split as a shell would split it, but reaches none; the message is its last
    argument. Raises `RuntimeError` when it fails.
    """
    log.error("%s", message)
    if command := setting("alert_command", section):
        try:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(command),
                message,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except (OSError, ValueError) as error:
            raise RuntimeError(
                f"alert_command ({command_shown(command)}) cannot be run: {error}"
            ) from error
        try:
            printed, _ = await asyncio.wait_for(process.communicate(), ALERT_S)
        except TimeoutError:
            process.kill()
            raise RuntimeError(f"alert_command did not end within {ALERT_S:g} s") from None
        if process.returncode != 0:
            told = printed.decode(errors="replace").strip()[-500:]
            raise RuntimeError(
                f"alert_command ended with code {process.returncode}: {without(command, told)}"
            )
