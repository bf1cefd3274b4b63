"""`spillway cleanup`: append a sealed session's missing results."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from spillway.commands import given
from spillway.commands.given import AsJson, dated
from spillway.commands.terminal import out, say, say_json, warn


def cleanup(
    session: Annotated[str, dated("The sealed session's date.")],
    json_: AsJson = False,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Only say what there is to do, and about how long it takes."),
    ] = False,
) -> None:
    """Append a sealed session's missing results, each once. It may be killed and run again."""
    if plan:
        _show_plan(session, json_=json_)
        return
    from spillway.cleanup.ahead import cores_of
    from spillway.cleanup.deferred import TopicSource
    from spillway.cleanup.job import run_cleanup
    from spillway.cleanup.progress import outcome_sentence, progress_of
    from spillway.cleanup.workers import HostWorkers
    from spillway.decode import compile_streams, tree_spec
    from spillway.registry import with_schemas
    from spillway.stream.messages import MessageSource
    from spillway.stream.session import spark_on_demand

    settings = given.settings()
    warehouse = given.warehouse(settings)
    query = given.session_query(settings, warehouse, session)
    kafka, master = settings.kafka, settings.spark.master
    streams = with_schemas(compile_streams(query), settings.registry, warehouse.place)
    with (
        spark_on_demand(master, f"spillway cleanup {session}") as start,
        progress_of(session, None if json_ else out) as progress,
    ):

        def start_spark() -> Any:
            progress.starting("Spark")
            return start()

        def host_workers(spilled_bytes: int) -> HostWorkers:
            made = HostWorkers(cores_of(master) or 1, spilled_bytes)
            progress.starting(f"{made.cores} processes" if made.cores > 1 else "")
            return made

        cleaned = run_cleanup(
            start_spark,
            warehouse,
            tree_spec(query),
            session,
            fingerprint=query.fingerprint,
            tell=partial(print, file=sys.stderr) if json_ else out.print,
            on_progress=progress.show,
            source=TopicSource(streams, MessageSource(kafka.bootstrap_servers, kafka.options)),
            workers=host_workers if master.startswith("local[") else None,
        )
    if not json_:
        say(outcome_sentence(cleaned))
    swept = sum(len(found.delete) for found in warehouse.vacuum().values())
    if json_:
        say_json(asdict(cleaned))
    elif swept:
        say(f"{swept:,} files that no table names were removed.")


def _show_plan(session: str, *, json_: bool) -> None:
    from spillway.cleanup.ahead import ahead_text, beyond_limit, cores_of, look_ahead
    from spillway.decode import compile_query

    settings = given.settings()
    warehouse = given.warehouse(settings)
    query = given.session_query(settings, warehouse, session)
    compiled = compile_query(query)
    ahead = look_ahead(
        warehouse,
        compiled.spec,
        session,
        fingerprint=query.fingerprint,
        cores=cores_of(settings.spark.master),
        streams=compiled.streams,
        tell=lambda line: print(f"cleanup {session}: {line}", file=sys.stderr),
    )
    if json_:
        say_json(asdict(ahead))
        return
    for line in ahead_text(ahead):
        say(line)
    if told := beyond_limit(ahead, settings.results.max_per_session):
        warn(told)
