"""`spillway kafka`: the embedded broker."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from spillway.commands import given
from spillway.commands.given import AsJson
from spillway.commands.terminal import fail, say, say_json
from spillway_schemas.exits import USAGE
from spillway_schemas.settings import Settings

app = typer.Typer(help="The embedded broker (loopback only).", no_args_is_help=True)


@app.command("start")
def start() -> None:
    """Start the embedded broker; a no-op when it runs."""
    from spillway.kafka import broker

    settings = given.settings()
    folder = Path(settings.kafka.data_dir)
    fresh = broker.is_new(folder)
    up = broker.start(folder, _port(settings))
    say(f"Kafka runs at {up.bootstrap} (process {up.pid}, log {up.log})")
    if fresh:
        say(f"It is a new, empty broker; its data are in {up.data_dir}")


@app.command("stop")
def stop() -> None:
    """Stop the embedded broker; its data stay."""
    from spillway.kafka import broker

    stopped = broker.stop(Path(given.settings().kafka.data_dir))
    say("Kafka has stopped" if stopped else "Kafka was not running")


@app.command("status")
def status(
    json_: AsJson = False,
) -> None:
    """Say whether the embedded broker runs."""
    from spillway.kafka import broker

    now = broker.status(Path(given.settings().kafka.data_dir))
    if json_:
        say_json(asdict(now))
    elif now.running:
        health = "healthy" if now.healthy else "does not answer"
        say(f"Kafka runs at {now.bootstrap} (process {now.pid}), {health}; log {now.log}")
    else:
        say(f"Kafka does not run; its data are in {now.data_dir}")


def _port(settings: Settings) -> int:
    servers = settings.kafka.bootstrap_servers
    host, _, port = servers.split(",")[0].rpartition(":")
    if host not in ("127.0.0.1", "localhost"):
        fail(
            f"kafka.bootstrap_servers is {servers}: the embedded broker is on 127.0.0.1 only, and "
            "nobody would ask it. Use that broker, or take the setting away",
            USAGE,
        )
    return int(port)
