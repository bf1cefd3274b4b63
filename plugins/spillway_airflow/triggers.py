"""Waiting without a worker: triggers, which Airflow's triggerer runs in one process for all."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from spillway_airflow.command import program
from spillway_airflow.connections import ConnectionProblem, environment_async
from spillway_airflow.sections import SPILLWAY

TELL_EVERY_S = 60.0
"""How often the log says what is waited for."""


class SealedTrigger(BaseTrigger):
    """Fires when a session is sealed: asks `spillway status`, which reads the journal alone.

    Every minute the task's log says what is still to come.
    """

    def __init__(
        self,
        session: str,
        config: str | None = None,
        every_s: float = 10.0,
        section: str = SPILLWAY,
    ) -> None:
        super().__init__()
        self.session = session
        self.config = config
        self.every_s = every_s
        self.section = section
        self._told_s = float("-inf")

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """As the database keeps it."""
        names = ("session", "config", "every_s", "section")
        given = {name: getattr(self, name) for name in names}
        return "spillway_airflow.triggers.SealedTrigger", given

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ask until it is sealed. A look that fails is told and repeated: the task has a limit."""
        while True:
            found = await self._look()
            if found is not None:
                yield TriggerEvent(found)
                return
            await asyncio.sleep(self.every_s)

    async def _look(self) -> dict[str, Any] | None:
        try:
            env = await environment_async(self.section)
        except ConnectionProblem as error:
            self.log.warning("spillway status: %s", error)
            return None
        process = await asyncio.create_subprocess_exec(
            *program(self.config, self.section),
            "status",
            "--json",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=env,
        )
        try:
            printed, told = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            raise
        if process.returncode != 0:
            self.log.warning("spillway status: %s", told.decode(errors="replace").strip()[-500:])
            return None
        status = json.loads(printed.splitlines()[-1])
        found = sealed(status, self.session)
        now_s = time.monotonic()
        if found is None and now_s - self._told_s >= TELL_EVERY_S:
            self._told_s = now_s
            self.log.info("%s", waits_for(status, self.session))
        return found


def sealed(status: dict[str, Any], session: str) -> dict[str, Any] | None:
    """What the status says of a session that is sealed; None while it is not."""
    for each in status["sessions"]:
        if each["session"] == session and each["ended_at"] is not None:
            return {"session": session, "ended_at": each["ended_at"], "stage": each["stage"]}
    return None


def waits_for(status: dict[str, Any], session: str) -> str:
    """What a session that is not sealed waits for, in a sentence."""
    stage = next((s["stage"] for s in status["sessions"] if s["session"] == session), None)
    if stage is None:
        return f"{session} is not in the journal yet: the session before it is not sealed"
    if stage == "ending":
        why = "its end is fixed, and the stream has not read all of it yet"
    else:
        why = "the stream has not read its seal yet"
    lag, age_s = status["lag_rows"], status["last_epoch_age_s"]
    rows = "Kafka does not answer" if lag is None else f"{lag:,} rows wait in Kafka"
    last = "there was no epoch yet" if age_s is None else f"the last epoch was {age_s:.0f} s ago"
    return f"{session}: {why}; {rows}, {last}"
