"""Which of several cleanups of a session works: the one that began last.

Model: a cleanup that begins appends a `cleaning` event with a name of its own to `sessions`. The
session's newest one holds the lease. A cleanup asks before each commit whether it still does;
when not, it raises `TakenOver` and its caller waits for the other. So what a killed worker left
behind stops by itself, whoever could not reach it; and of two runs at once only one computes.

The holder may die too. Whoever waits looks at how far it is: when neither a range is committed
nor the session cleaned within `STALLED_S`, it begins again, as the newest.

Exactness does not rest on any of this: ranges are committed once each by their numbers.
"""

from __future__ import annotations

import os
import platform
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from spillway.tables import SessionEvent, Warehouse

STALLED_S = 180.0
POLL_S = 1.0


class TakenOver(Exception):
    """Another cleanup of the session has begun later; the message says which."""


@dataclass(frozen=True)
class Lease:
    """One cleanup's claim to a session."""

    warehouse: Warehouse
    session: str
    name: str

    @classmethod
    def take(cls, warehouse: Warehouse, session: str) -> Lease:
        """Begin: from now on this cleanup is the newest."""
        lease = cls(warehouse, session, uuid.uuid4().hex[:12])
        details = {"lease": lease.name, "host": platform.node(), "process": os.getpid()}
        warehouse.sessions.append(SessionEvent(session=session, event="cleaning", details=details))
        return lease

    def check(self) -> None:
        """Raises `TakenOver` when another cleanup has begun since."""
        newest = self._newest()
        if newest is not None and newest.details["lease"] != self.name:
            told = newest.details
            raise TakenOver(
                f"another cleanup of {self.session} has begun at {newest.written_at} "
                f"(process {told['process']} on {told['host']})"
            )

    def wait(self, applied: Callable[[], int], stalled_s: float) -> bool:
        """Wait for the other cleanup: True when the session is cleaned, False when it stalls."""
        at, since = applied(), time.monotonic()
        while self.session not in self.warehouse.sessions.cleaned():
            if (now := applied()) != at:
                at, since = now, time.monotonic()
            if time.monotonic() - since > stalled_s:
                return False
            time.sleep(POLL_S)
        return True

    def _newest(self) -> SessionEvent | None:
        mine = [
            each
            for each in self.warehouse.sessions.read()
            if (each.session, each.event) == (self.session, "cleaning")
        ]
        return mine[-1] if mine else None
