"""`spillway produce`: send a scenario or a recording."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from spillway.commands import given
from spillway.commands.terminal import err, out, say, warn


def produce(
    scenario: Annotated[
        str | None, typer.Argument(help="A shipped scenario's name or a TOML file.")
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Send recorded rows (JSON lines or Parquet) instead of a scenario."
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --replay: the topic of plain messages. Without it: the file's name.",
        ),
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="FACTOR",
            help="1: the rows' own timing, 60: a minute a second, 0: as fast as possible. Without "
            "it: 1 for a scenario that names a rate, else 0.",
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="With a scenario: how many processes send.")
    ] = None,
) -> None:
    """Produce a scenario's messages, or replay recorded ones.

    Topics that do not exist are made; not one that the warehouse's journal has read.

    Messages of a scenario are written in the format that the query reads their topic in.
    """
    from spillway.produce.bar import progress_bar
    from spillway.produce.encode import encodings
    from spillway.produce.replay import replay as replay_file
    from spillway.produce.run import produce as produce_scenario
    from spillway.produce.summary import sent
    from spillway.report.words import times_text
    from spillway.topics import assure_new, unread
    from spillway_schemas.scenario import load_scenario

    settings = given.settings()
    servers, options = settings.kafka.bootstrap_servers, settings.kafka.options
    if scenario is None and replay is None:
        raise typer.BadParameter("name a scenario, or a recording with --replay")
    if scenario is not None and replay is not None:
        raise typer.BadParameter("a scenario and --replay at once: leave one of them out")
    if topic is not None and replay is None:
        raise typer.BadParameter("--topic goes with --replay: a scenario names its topics")
    if processes is not None and scenario is None:
        raise typer.BadParameter("--processes goes with a scenario: one process sends a recording")
    # Before the bar: what is wrong is said alone.
    chosen = None if scenario is None else load_scenario(scenario)
    assured = partial(assure_new, settings)
    formats = {} if chosen is None else encodings(given.query(settings), settings.registry)
    with progress_bar(console=err) as progress:
        if replay is not None:
            summary = replay_file(
                replay,
                servers,
                options=options,
                topic=topic,
                speed=speed or None,
                assure_new=assured,
                progress=progress,
            )
        else:
            assert chosen is not None
            summary = produce_scenario(
                chosen,
                servers,
                options=options,
                speed="auto" if speed is None else speed or None,
                processes=processes,
                encodings=formats,
                assure_new=assured,
                progress=progress,
            )
    out.print(sent(summary, made=replay is None))
    rows = times_text(summary.rows, "row")
    say(f"{rows} in {summary.seconds:.1f} s: {summary.rows_per_s:,.0f} a second")
    topics = [each.topic for each in summary.topics]
    if problem := unread(topics, settings.query, recorded=replay is not None):
        warn(problem)
