"""`spillway maintain`: the upkeep of the tables."""

from __future__ import annotations

from typing import Annotated

import typer

from spillway.commands import given
from spillway.commands.given import AsJson
from spillway.commands.terminal import out, say_json


def maintain(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    keep_spilled_days: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Instead of maintenance.keep_spilled_days."),
    ] = None,
    keep_statistics_days: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Instead of maintenance.keep_statistics_days."),
    ] = None,
    archive_journal_days: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Instead of maintenance.archive_journal_days."),
    ] = None,
    json_: AsJson = False,
) -> None:
    """Tidy the tables: drop what finished days no longer need, merge files, delete unused ones.

    Only days that are proved complete lose anything, and only their spilled rows and statistics.
    Their journal entries move to the archive, if a setting says when.
    It may run beside everything else, and be run again.
    """
    from spillway.maintenance import maintain as tidy
    from spillway.maintenance import shown

    settings = given.settings(
        maintenance__keep_spilled_days=keep_spilled_days,
        maintenance__keep_statistics_days=keep_statistics_days,
        maintenance__archive_journal_days=archive_journal_days,
    )
    report = tidy(
        given.warehouse(settings),
        keep_spilled_days=settings.maintenance.keep_spilled_days,
        keep_statistics_days=settings.maintenance.keep_statistics_days,
        archive_journal_days=settings.maintenance.archive_journal_days,
        dry_run=dry_run,
    )
    if json_:
        say_json(report.to_dict())
    else:
        out.print(shown(report), highlight=False)
