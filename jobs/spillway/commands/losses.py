"""`spillway accept-loss`: go on, and end a session, without input that is gone for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spillway.commands import given
from spillway.commands.given import AsJson, dated
from spillway.commands.terminal import say, say_json, who

if TYPE_CHECKING:
    from spillway.losses import LossAnswer


def accept_loss(
    session: Annotated[str, dated("The session's date.")],
    reason: Annotated[str, typer.Option(help="Why, for `sessions` and for whoever asks later.")],
    by: Annotated[str | None, typer.Option(help="Who asks, when it is not this user.")] = None,
    json_: AsJson = False,
) -> None:
    """Accept that input of a session is gone from Kafka: the stream and cleanup do without it, and
    the day ends as not complete."""
    if not reason.strip():
        raise typer.BadParameter("--reason is empty: say why, `sessions` keeps it with the loss")
    from spillway.losses import accept_loss as accept

    settings = given.settings()
    warehouse = given.warehouse(settings)
    answer = accept(
        warehouse,
        given.session_query(settings, warehouse, session).fingerprint,
        session,
        reason,
        by or who(),
        bootstrap=settings.kafka.bootstrap_servers,
        client=settings.kafka.options,
        clock=given.clock,
    )
    if json_:
        told = {
            "never_read": answer.never_read,
            "of_before": answer.of_before,
            "of_next": answer.of_next,
            "held": answer.held,
        }
        say_json({**answer.loss.model_dump(), **told})
        return
    for line in accepted_lines(session, answer):
        say(line)


def accepted_lines(session: str, answer: LossAnswer) -> list[str]:
    """What was accepted, and what comes next."""
    loss = answer.loss
    if not loss.ranges:
        return [f"Kafka holds all of {session} again: what was accepted is taken back"]
    lost = [f"lost: {each}" for each in loss.ranges]
    if answer.never_read is not None:
        which = "of the session before " if answer.of_before else ""
        later = answer.of_next
        count = "All" if later == loss.offsets else f"{later:,}"
        behind = (
            f"{count} of them lie behind the end of its seal, which is pending: they are of the "
            f"session after {session}, which ends as not complete"
        )
        return [
            *lost,
            f"{session}: {loss.offsets:,} offsets {which}are accepted as lost, "
            f"{answer.never_read:,} of them before they were read",
            *([behind] if later else []),
            "Next: stop `spillway stream` and start it again, with a higher "
            "results.max_per_session: until then it neither reads rows nor takes up a loss"
            if answer.held
            else "Next: `spillway stream` goes on without these rows: "
            "start it if it is not running",
            f"Then: {session} can still end as complete: none of its own rows is lost"
            if answer.of_before or later == loss.offsets
            else f"Then: `spillway verify --session {session}` ends the day as not complete",
        ]
    return [
        *lost,
        f"{session}: {loss.offsets:,} offsets are accepted as lost",
        f"Next: `spillway cleanup --session {session}` does without these rows",
        f"Then: `spillway verify --session {session}` ends the day as not complete",
    ]
