"""What one run of the stream was asked for, what it tells, and how it may end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from spillway.protocol.state import JournalState
from spillway_schemas.exits import FAILED
from spillway_schemas.journal import Epoch


@dataclass
class Wanted:
    """What `spillway stream` was asked for."""

    session: str | None = None
    until_sealed: str | None = None
    available_now: bool = False


def _nothing(_: object) -> None:
    """Nobody watches."""


@dataclass
class Watcher:
    """What the stream tells whoever runs it."""

    on_epoch: Callable[[Epoch], None] = _nothing
    on_trouble: Callable[[str], None] = _nothing
    on_start: Callable[[JournalState], None] = _nothing
    on_progress: Callable[[str], None] = _nothing
    """What the start does next: it takes seconds."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Set to end the stream after its epoch (SIGTERM does)."""


class SessionNotOpen(Exception):
    """The session asked for is not the open one."""

    exit_code = FAILED


class IntakeHeld(Exception):
    """What Kafka holds was asked for, and the session has as many results as it may have."""

    exit_code = FAILED


class StreamFailed(Exception):
    """The stream ended with an error (exit code 3); what was journaled stays exact."""
