"""`spillway stream`: join until stopped."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from spillway.commands import given
from spillway.commands.given import dated
from spillway.commands.terminal import escaped, fail, out, say, told, warn
from spillway_schemas.exits import FAILED
from spillway_schemas.journal import Epoch


def stream(
    session: Annotated[
        str | None, dated("The open session's date. A new warehouse begins with it.")
    ] = None,
    until_sealed: Annotated[
        str | None, dated("End when the session of this date is sealed.")
    ] = None,
    available_now: Annotated[
        bool,
        typer.Option(
            "--available-now", help="End when everything that Kafka holds now has been read."
        ),
    ] = False,
    as_begun: Annotated[
        bool,
        typer.Option(
            "--as-begun",
            help="Keep to the query that the open session was started with, though the settings' "
            "query has changed since. With --until-sealed: the next start takes that up.",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no line for each epoch.")] = False,
) -> None:
    """Join the streams, until stopped (SIGTERM and Ctrl-C end it after its epoch)."""
    from spillway.allocators import few_arenas, one_allocator
    from spillway.stream.interrupts import stop_on_signals

    stop = threading.Event()
    stop_on_signals(stop)  # before the slow imports
    few_arenas()
    one_allocator()

    from spillway import doctor as doctors
    from spillway.metrics.serving import serving
    from spillway.stream.progress import RunTally, epoch_line, in_short, start_line
    from spillway.stream.run import Wanted, Watcher
    from spillway.stream.service import Stream

    settings = given.settings()
    watcher = Watcher(stop=stop)
    watcher.on_trouble = lambda text: warn(in_short(told(text)))
    tally = RunTally()
    if not quiet:

        def tell(entry: Epoch) -> None:
            tally.add(entry)
            out.print(epoch_line(entry), highlight=False, soft_wrap=True)

        watcher.on_epoch = tell
        watcher.on_start = lambda state: out.print(
            start_line(state), highlight=False, soft_wrap=True
        )
        watcher.on_progress = lambda text: out.print(
            escaped(text), style="dim", highlight=False, soft_wrap=True
        )
    wanted = Wanted(session, until_sealed, available_now)
    if as_begun:
        query = given.session_query(settings, given.warehouse(settings))
    else:
        query = given.query(settings)
    job = Stream(settings, query, wanted, watcher, given.clock)
    if job.is_done():
        say(f"{until_sealed} is sealed already: there is nothing to read")
        return
    watcher.on_progress("checking this machine, Kafka and the tables")
    checks = doctors.check_all(settings, thorough=False, query=query)
    # A mistake in what is said of another query ends that one's stream alone.
    beside = doctors.beside(given.readable(given.named_settings()))
    failed = doctors.blocking([*beside, *checks])
    if failed:
        out.print(doctors.table(failed))
        fail("not started: it would fail later (all checks: spillway doctor)", FAILED)
    with serving(settings, watcher) as address:
        if address is not None and not quiet:
            say(f"figures for Prometheus: {address}")
        job.run()
    # A day that is sealed, or a signal, may end it before.
    if available_now and until_sealed is None and not quiet and not stop.is_set():
        say(tally.line())
        if trouble := tally.trouble():
            warn(trouble)
