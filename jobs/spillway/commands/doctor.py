"""`spillway doctor`: check what the stream needs."""

from __future__ import annotations

from typing import Annotated

import typer

from spillway.commands import given
from spillway.commands.given import AsJson, CloseDelay
from spillway.commands.terminal import out, say, say_json
from spillway_schemas.exits import FAILED


def doctor(
    json_: AsJson = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Take torn entries off the ends of the tables' logs, then check. Before that, "
            "stop everything that uses the warehouse.",
        ),
    ] = False,
    close_delay: CloseDelay = None,
) -> None:
    """Check everything that the stream needs, and say how to mend what fails."""
    from spillway import doctor as checks

    settings = given.settings()
    if repair:
        from spillway.tables.repair import repair as mend

        for line in mend(settings.warehouse.root, settings.warehouse.options) or [
            "nothing had to be mended"
        ]:
            say(line)
    found = checks.check_all(settings, close_delay_s=close_delay)
    if json_:
        say_json([each.as_dict() for each in found])
    else:
        out.print(checks.table(found))
    if checks.blocking(found):
        raise typer.Exit(FAILED)
