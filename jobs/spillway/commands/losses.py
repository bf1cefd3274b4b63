"""`spillway accept-loss`: end a session whose input is gone for good."""

from __future__ import annotations

from typing import Annotated

import typer

from spillway.commands import given
from spillway.commands.given import AsJson, dated
from spillway.commands.terminal import say, say_json, who
from spillway_schemas.losses import AcceptedLoss


def accept_loss(
    session: Annotated[str, dated("The session's date.")],
    reason: Annotated[str, typer.Option(help="Why, for `sessions` and for whoever asks later.")],
    by: Annotated[str | None, typer.Option(help="Who asks, when it is not this user.")] = None,
    json_: AsJson = False,
) -> None:
    """Accept that input of a sealed session is gone from Kafka: cleanup does without it, and the
    day ends as not complete."""
    from spillway.losses import accept_loss as accept

    settings = given.settings()
    warehouse = given.warehouse(settings)
    loss = accept(
        warehouse,
        given.session_query(settings, warehouse, session).fingerprint,
        session,
        reason,
        by or who(),
        bootstrap=settings.kafka.bootstrap_servers,
        client=settings.kafka.options,
    )
    if json_:
        say_json(loss.model_dump())
        return
    for line in accepted_lines(session, loss):
        say(line)


def accepted_lines(session: str, loss: AcceptedLoss) -> list[str]:
    """What was accepted, and what comes next."""
    if not loss.ranges:
        return [f"Kafka holds all of {session} again: what was accepted is taken back"]
    return [
        *(f"lost: {each}" for each in loss.ranges),
        f"{session}: {loss.offsets:,} offsets are accepted as lost",
        f"Next: `spillway cleanup --session {session}` does without these rows",
        f"Then: `spillway verify --session {session}` ends the day as not complete",
    ]
