"""`spillway config`: settings and where they come from."""

from __future__ import annotations

import typer

from spillway.commands import given
from spillway.commands.given import AsJson
from spillway.commands.terminal import out, say_json

app = typer.Typer(help="The settings, and where they come from.", no_args_is_help=True)


@app.command("show")
def show(
    json_: AsJson = False,
) -> None:
    """Print every setting with its value, unit and origin."""
    from spillway.report.settings import settings_table
    from spillway_schemas.settings import catalogue, values

    settings, origins = given.with_origins()
    now = values(settings)
    if json_:
        listed = {n: {"value": v, "origin": str(origins[n])} for n, v in now.items()}
        say_json(listed, default=str)
        return
    out.print(settings_table(catalogue(), now, origins, out), highlight=False, soft_wrap=True)
