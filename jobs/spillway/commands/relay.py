"""`spillway relay`: results as records of a Kafka topic."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from spillway.commands import given
from spillway.commands.terminal import say, told, warn


def relay(
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="Where the rows go.")],
    once: Annotated[
        bool, typer.Option("--once", help="End when all rows that are there now are in the topic.")
    ] = False,
    from_now: Annotated[
        bool,
        typer.Option(
            "--from-now",
            help="At the first start, leave out the rows that are there already. Later starts go "
            "on where the last one ended, with this option, too.",
        ),
    ] = False,
    create: Annotated[
        int | None,
        typer.Option(min=1, metavar="PARTITIONS", help="Make the topics that do not exist yet."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no line for each step.")] = False,
) -> None:
    """Write each row of `results` to a Kafka topic, once, until stopped (SIGTERM, Ctrl-C).

    Consumers that read what is committed see each row once, whatever was killed. A second relay to
    the same topic takes over from the first.
    """
    from spillway.stream.interrupts import stop_on_signals

    stop = threading.Event()
    stop_on_signals(stop, "step")  # before the slow imports

    from spillway.relay.lines import begin_line, step_line
    from spillway.relay.run import Telling
    from spillway.relay.service import relay_results

    settings = given.settings()
    telling = Telling(on_trouble=lambda text: warn(told(text)))
    if not quiet:
        telling.on_start = lambda kept: say(begin_line(topic, kept))
        telling.on_step = lambda step: say(step_line(step))
    relay_results(
        settings,
        given.query(settings),
        topic,
        once=once,
        from_now=from_now,
        create=create,
        stop=stop,
        telling=telling,
    )
