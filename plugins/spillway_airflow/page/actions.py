"""What people do from the page: the command line in a process of its own, one action at a time.

Each needs a reason; the command keeps it with the user's name, and the journal copies both. Nothing
here decides anything: the stream obeys or refuses at its next epoch, and the page shows which.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from spillway_airflow.command import Running
from spillway_airflow.connections import ConnectionProblem
from spillway_airflow.page import door
from spillway_schemas.session_date import SessionDate

_one: dict[str, threading.Lock] = defaultdict(threading.Lock)
"""By section: one action at a time."""
LIMIT_S = 120.0
"""How long a command may take; a broker that does not answer must not hold the page for ever."""

Reason = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=3, max_length=500, pattern=r"^[^\x00]*$"),
]


class Action(BaseModel):
    """What every action needs."""

    model_config = ConfigDict(extra="forbid")

    reason: Reason


class RebalanceForm(Action):
    """Run the controller once."""

    dry_run: bool
    policy: Annotated[str, StringConstraints(pattern=r"^[a-z-]{1,40}$")] | None = None
    """Instead of `rebalance.policy`."""


class SpillForm(Action):
    """Have one slot spill."""

    slot: int = Field(ge=0, le=1_000_000)
    bytes: int = Field(gt=0, le=1 << 50)


class SealForm(Action):
    """End a session's input where its topics end now."""

    session: SessionDate


class Withdrawal(Action):
    """Take back a session's seal that the stream has not passed."""

    session: SessionDate


class LossForm(Action):
    """Accept what Kafka has lost of a session."""

    session: SessionDate


class ActionOutcome(BaseModel):
    """What the command came to."""

    code: int
    """Its exit code: 0 when everything was asked for."""
    lines: list[str]
    """What it said."""
    found: Any
    """What it printed as JSON."""


def add_to(app: FastAPI, rights: door.Rights, section: str) -> None:
    """Add the routes: POST only, from the page only, for those who may."""
    rebalances = [Depends(door.from_the_page), Depends(rights.rebalance)]
    closes = [Depends(door.from_the_page), Depends(rights.close)]

    def run(someone: Any, asked: Action, *arguments: str) -> ActionOutcome:
        if not _one[section].acquire(blocking=False):
            raise HTTPException(409, "another action is under way: wait for its end")
        try:
            return _run(someone, asked, arguments, section)
        finally:
            _one[section].release()

    @app.post("/act/rebalance", dependencies=rebalances)
    def rebalance(asked: RebalanceForm, someone: door.User) -> ActionOutcome:
        """Dry or real."""
        more = [f"--policy={asked.policy}"] if asked.policy else []
        more += ["--dry-run"] if asked.dry_run else []
        return run(someone, asked, "rebalance", "--json", *more)

    @app.post("/act/spill", dependencies=rebalances)
    def spill(asked: SpillForm, someone: door.User) -> ActionOutcome:
        """At one slot."""
        wish = f"--spill={asked.slot}:{asked.bytes}B"
        return run(someone, asked, "rebalance", "--json", wish)

    @app.post("/act/seal", dependencies=closes)
    def seal(asked: SealForm, someone: door.User) -> ActionOutcome:
        """Now."""
        return run(someone, asked, "seal", f"--session={asked.session}", "--at=now")

    @app.post("/act/withdraw", dependencies=closes)
    def withdraw(asked: Withdrawal, someone: door.User) -> ActionOutcome:
        """A seal that is pending."""
        return run(someone, asked, "seal", f"--session={asked.session}", "--withdraw")

    @app.post("/act/loss", dependencies=closes)
    def loss(asked: LossForm, someone: door.User) -> ActionOutcome:
        """Of an open session or a sealed one."""
        return run(someone, asked, "accept-loss", f"--session={asked.session}")


def _run(someone: Any, asked: Action, arguments: Sequence[str], section: str) -> ActionOutcome:
    """Run a command to its end. Text of people is one argument, whatever it begins with."""
    lines: list[str] = []
    by = f"--by={someone.get_name()}"
    command = [*arguments, f"--reason={asked.reason}", by]
    try:
        running = Running(command, lines.append, section=section)
    except ConnectionProblem as error:
        raise HTTPException(503, str(error)) from error
    late = threading.Timer(LIMIT_S, running.end)
    late.start()
    try:
        code = running.wait()
    finally:
        late.cancel()
        running.end()
    if code < 0:
        lines.append(f"ended after {LIMIT_S:.0f} s without an answer")
    found = running.json()
    said = [line for line in lines if line and not line.startswith("{")]
    return ActionOutcome(code=code, lines=said[-30:], found=found)
