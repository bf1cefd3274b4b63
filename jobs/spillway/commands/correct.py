"""`spillway correct`: late rows for a session that is closed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spillway.commands import given
from spillway.commands.given import AsJson, dated
from spillway.commands.terminal import out, say, say_json, who

if TYPE_CHECKING:
    from spillway.corrections.leaves import TreeLeaves
    from spillway.corrections.rows import Correction, KeptRevision
    from spillway.tables import Warehouse
    from spillway_schemas.query import Query
    from spillway_schemas.settings import Settings


def tree_leaves(query: Query, settings: Settings, warehouse: Warehouse) -> TreeLeaves:
    """What a correction of a tree of joins needs to know of its leaves."""
    from spillway.corrections.leaves import TreeLeaves
    from spillway.decode.values import leaf_plans, values_of, windows_of
    from spillway.registry import with_schemas

    values = values_of(query)
    plans = with_schemas(leaf_plans(query, values), settings.registry, warehouse.place)
    return TreeLeaves(values, plans, windows_of(query))


def correct(
    session: Annotated[str, dated("The closed session's date.")],
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="The rows: JSON lines or Parquet, as `produce --replay` takes them. Without FILE "
            "and --topic: only finish what was begun.",
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(help="A topic that holds the rows; what it has gained since the last time."),
    ] = None,
    stream: Annotated[
        str | None,
        typer.Option(
            help="Whose messages they are, when the name of file or topic is not the stream's."
        ),
    ] = None,
    reason: Annotated[
        str | None,
        typer.Option(
            help="Why, for `sessions` and for whoever asks later. Needed, except with --plan or to "
            "finish what was begun."
        ),
    ] = None,
    by: Annotated[str | None, typer.Option(help="Who asks, when it is not this user.")] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only say how many results would be added.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Join late rows with the input of a session that is proved, and append the results that they
    add, each once. It may be killed and run again."""
    if file is not None and topic is not None:
        raise typer.BadParameter("the rows come from a file or from a topic: give one of them")
    if (file or topic) and not plan and not (reason or "").strip():
        raise typer.BadParameter("--reason is needed: `sessions` keeps it with the revision")
    from spillway.cleanup.deferred import TopicSource
    from spillway.corrections.job import CorrectionRequest, run_correction
    from spillway.corrections.rows import from_file
    from spillway.corrections.shown import corrected_lines
    from spillway.corrections.topics import from_topic
    from spillway.decode import compile_query
    from spillway.registry import with_schemas
    from spillway.stream.messages import MessageSource
    from spillway.stream.session import spark_on_demand

    settings = given.settings()
    kafka, warehouse = settings.kafka, given.warehouse(settings)
    query = given.session_query(settings, warehouse, session)
    compiled = compile_query(query)
    streams = with_schemas(compiled.streams, settings.registry, warehouse.place)
    source = TopicSource(streams, MessageSource(kafka.bootstrap_servers, kafka.options))
    tell = partial(print, file=sys.stderr) if json_ else out.print
    with spark_on_demand(settings.spark.master, f"spillway correct {session}") as start:
        read: Callable[[Sequence[KeptRevision]], Correction | None] | None = None
        if file is not None:
            rows = cache(partial(from_file, file, stream, streams))  # once, however often it tries
            read = lambda _: rows()  # noqa: E731
        elif topic is not None:
            read = partial(from_topic, source, topic, stream, tell)
        done = run_correction(
            start,
            warehouse,
            compiled.spec,
            session,
            source,
            None if read is None else CorrectionRequest(read, reason or "", by or who()),
            fingerprint=query.fingerprint,
            tree=None if query.is_single else tree_leaves(query, settings, warehouse),
            plan=plan,
            tell=tell,
        )
    if json_:
        say_json(
            asdict(done)
            | {
                "finished": [each.model_dump() for each in done.finished],
                "revision": None if done.revision is None else done.revision.model_dump(),
            }
        )
        return
    for line in corrected_lines(done):
        say(line)
