"""Commands as tests write them: by kind, each decision named in the command's id."""

from __future__ import annotations

from typing import Any

from spillway_schemas.commands import COMMAND, SESSION_KINDS, Command
from spillway_schemas.journal import CommandOutcome


def command_of(kind: str, id_: str, **what: Any) -> Command:
    """A command of a kind; one of `decision/number` is a part of that decision."""
    if kind not in SESSION_KINDS:
        what.setdefault("decision", id_.rpartition("/")[0] or id_)
    return COMMAND.validate_python({"kind": kind, "id": id_, **what})


def outcome_of(id_: str, **what: Any) -> CommandOutcome:
    """What became of the command `id_`."""
    return CommandOutcome(id=id_, decision=id_.rpartition("/")[0] or id_, **what)
