"""Waiting without a worker: triggers, which Airflow's triggerer runs in one process for all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from spillway_airflow.command import program
from spillway_airflow.sections import SPILLWAY


class SealedTrigger(BaseTrigger):
    """Fires when a session is sealed: asks `spillway status`, which reads the journal alone."""

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
        process = await asyncio.create_subprocess_exec(
            *program(self.config, self.section),
            "status",
            "--json",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            printed, told = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            raise
        if process.returncode != 0:
            self.log.warning("spillway status: %s", told.decode(errors="replace").strip()[-500:])
            return None
        return sealed(json.loads(printed.splitlines()[-1]), self.session)


def sealed(status: dict[str, Any], session: str) -> dict[str, Any] | None:
    """What the status says of a session that is sealed; None while it is not."""
    for each in status["sessions"]:
        if each["session"] == session and each["ended_at"] is not None:
            return {"session": session, "ended_at": each["ended_at"], "stage": each["stage"]}
    return None
