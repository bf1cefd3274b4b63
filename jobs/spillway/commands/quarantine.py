"""`spillway quarantine`: rows that broke their contract."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spillway.commands import given
from spillway.commands.given import dated
from spillway.commands.terminal import out, say, say_json

app = typer.Typer(help="Rows that broke their contract.", no_args_is_help=True)


@app.command("list")
def list_(
    session: Annotated[str | None, dated("Only this session.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows to show.")] = 20,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object a row.")] = False,
) -> None:
    """Show quarantined rows with their coordinates and reasons."""
    from spillway.quarantine import list_rows, table

    rows = list_rows(given.warehouse(given.settings()), session, limit)
    if json_:
        for row in rows:
            say_json(row)
    elif rows:
        out.print(table(rows))
    else:
        say("No row is quarantined" + (f" of session {session}." if session else "."))


@app.command("replay")
def replay(
    file: Annotated[Path, typer.Argument(help="Mended rows, as `list --json` prints them.")],
) -> None:
    """Send mended rows to their topics again, all or none; they are new rows of the open session.

    The whole file is checked first. When a line is wrong, nothing is sent.
    """
    from spillway.mended import replay_rows

    settings = given.settings()
    sent = replay_rows(settings, given.query(settings), file)
    say(f"{sent:,} row{'' if sent == 1 else 's'} sent")
