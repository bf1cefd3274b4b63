"""`spillway doctor`: check what the stream needs."""

from __future__ import annotations

from typing import Annotated

import typer

from spillway.commands import given
from spillway.commands.given import AsJson, CloseDelay
from spillway.commands.terminal import err, escaped, out, say, say_json
from spillway_schemas.exits import FAILED
from spillway_schemas.settings import SettingsError


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

    if repair:
        from spillway.tables.repair import repair as mend

        place = given.settings().warehouse
        for line in mend(place.root, place.options) or ["nothing had to be mended"]:
            say(line)
    asked, named = given.each_settings(), given.named_settings()
    found = checks.beside(given.readable(named))
    for name, each in named:
        if isinstance(each, SettingsError):
            found.append(checks.broken(name, each, is_asked=len(asked) > 1))
    for name, settings in asked:
        if isinstance(settings, SettingsError):
            continue
        # A store or a broker that does not answer is asked for up to a minute.
        with err.status(f"checking this machine, Kafka and {escaped(settings.warehouse.root)}"):
            mine = checks.check_all(settings, close_delay_s=close_delay)
        found += mine if len(asked) == 1 else checks.of_query(name, mine)
    if json_:
        say_json([each.as_dict() for each in found])
    else:
        out.print(checks.table(found))
    if checks.blocking(found):
        raise typer.Exit(FAILED)
