"""`spillway seal`: end a session, or take a seal back."""

from __future__ import annotations

from typing import Annotated

import typer

from spillway.commands import given
from spillway.commands.given import CloseDelay, dated
from spillway.commands.terminal import say, warn, who


def seal(
    session: Annotated[str, dated("The session's date.")],
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="The end: now (where the topics end; the default), read (where the stream "
            "stands), close (the calendar's, plus session.grace_s) or an RFC 3339 time.",
        ),
    ] = None,
    withdraw: Annotated[
        bool,
        typer.Option("--withdraw", help="Take back a seal whose end the stream has not passed."),
    ] = False,
    reason: Annotated[str, typer.Option(help="Why, for the journal.")] = "",
    by: Annotated[str | None, typer.Option(help="Who asks, when it is not this user.")] = None,
    close_delay: CloseDelay = None,
) -> None:
    """End a session: rows up to its end belong to it, later ones to the next."""
    from spillway.closing import must_outlast_grace
    from spillway.report.running import waits_for_a_stream
    from spillway.sealing import request_seal, request_withdrawal

    if withdraw and at is not None:
        raise typer.BadParameter("--withdraw takes a seal back, whatever its time: leave out --at")
    settings = given.settings()
    if close_delay is not None:
        must_outlast_grace(settings.session.grace_s, close_delay)
    asks = by or who()
    if withdraw:
        answer = request_withdrawal(settings, session, reason, asks, clock=given.clock)
    else:
        answer = request_seal(settings, session, at or "now", reason, asks, clock=given.clock)
    say(answer)
    if waits_for_a_stream(given.warehouse(settings)):
        warn("no stream runs here: this waits until 'spillway stream' is started again")
