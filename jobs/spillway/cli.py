"""The command line. Thin: each command loads the settings, calls one function, prints, exits.

Exit codes everywhere: 0 yes, 1 `verify` found the day not complete, 2 wrong usage or settings,
3 anything else (an uncaught error too), 4 there is no warehouse or no journal yet to work on.
Heavy imports (Spark, deltalake, pandas) happen inside the commands, so that `--help` answers at
once.
"""

from __future__ import annotations

import getpass
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperGroup

from spillway.clock import Clock, system_clock
from spillway.places import var_folder
from spillway.plain import plain
from spillway.private import open_private
from spillway_schemas.exits import FAILED, INTERRUPTED, NOT_COMPLETE, USAGE
from spillway_schemas.secret import hide, hide_credentials
from spillway_schemas.session_date import SessionDateError, session_date
from spillway_schemas.settings import Settings, load_settings


class Commands(TyperGroup):
    """All commands. Says where an option of every command belongs."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. What it raises has a hint where such an option stands too late."""
        try:
            return super().invoke(ctx)
        except Exception as error:  # typer does not say where its error of unknown options is
            option = getattr(error, "option_name", None)
            if option in ("--set", "--config"):
                error.possibilities = []  # type: ignore[attr-defined]
                error.message += (  # type: ignore[attr-defined]
                    f" here. Write it right after spillway, before the command: "
                    f"spillway {option} ... {ctx.invoked_subcommand} ..."
                )
            raise


app = typer.Typer(
    name="spillway",
    cls=Commands,
    help="An exact stream join that outgrows its memory.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console()
err = Console(stderr=True)

clock: Clock = system_clock
"""The one clock of the process; handed to what asks for the time."""
_loaded: dict[str, Any] = {}


def _date(text: str | None) -> str | None:
    """A session's date, as every option that takes one reads it."""
    try:
        return None if text is None else session_date(text)
    except SessionDateError as error:
        raise typer.BadParameter(str(error)) from None


def _dated(help_: str) -> Any:
    return typer.Option(help=help_, metavar="YYYY-MM-DD", callback=_date)


@app.callback(invoke_without_command=True)
def common(
    ctx: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="Settings file; spillway.toml here when it exists.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting, e.g. --set state.slots=4. May be repeated."),
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="With --version: those of packages and file formats, too."),
    ] = False,
) -> None:
    """Options of every command."""
    if version:
        from spillway.versions import told

        for line in told(verbose):
            _say(line)
        raise typer.Exit
    if verbose:
        raise typer.BadParameter("--verbose goes with --version")
    if ctx.invoked_subcommand is None:
        ctx.fail("Missing command.")
    _loaded.update(config=config, flags=dict(_flag(each) for each in set_ or []))


def _flag(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        first = hide_credentials(next(iter(text.split()), ""))
        raise typer.BadParameter(f"{first!r}: write --set section.name=value")
    if not name.strip():
        raise typer.BadParameter("a name is missing: write --set section.name=value")
    return name.strip(), value.strip()


def _settings(**flags: object) -> Settings:
    return _with_origins(**flags)[0]


def _with_origins(**flags: object) -> tuple[Settings, Any]:
    given = {name.replace("__", "."): value for name, value in flags.items()}
    merged = {**_loaded.get("flags", {}), **{k: v for k, v in given.items() if v is not None}}
    settings, origins = load_settings(_loaded.get("config"), merged)
    _loaded["secrets"] = settings.kafka.options
    return settings, origins


def _query(settings: Settings) -> Any:
    from spillway_schemas.query import load_query

    return load_query(settings.query)


def _warehouse(settings: Settings) -> Any:
    from spillway.tables import Warehouse

    return Warehouse(settings.warehouse.root, fsync=settings.warehouse.fsync)


# ------------------------------------------------------------------------------- stream


@app.command()
def stream(
    session: Annotated[str | None, _dated("The open session's date; names the first one.")] = None,
    until_sealed: Annotated[
        str | None, _dated("End when the session of this date is sealed.")
    ] = None,
    available_now: Annotated[
        bool, typer.Option(help="End when everything that Kafka holds now was read.")
    ] = False,
    quiet: Annotated[bool, typer.Option(help="No line for each epoch.")] = False,
) -> None:
    """Join the streams, until stopped (SIGTERM and Ctrl-C end it after its epoch)."""
    from spillway.stream.interrupts import stop_on_signals

    stop = threading.Event()
    stop_on_signals(stop)  # before the slow imports

    from spillway import doctor as doctors
    from spillway.metrics.serving import serving
    from spillway.stream.progress import epoch_line, in_short, start_line
    from spillway.stream.service import SessionNotOpen, Stream, Wanted, Watcher

    settings = _settings()
    watcher = Watcher(stop=stop)
    watcher.on_trouble = lambda text: err.print(
        f"[yellow]{_escaped(in_short(_told(text)))}[/]", highlight=False, soft_wrap=True
    )
    if not quiet:
        watcher.on_epoch = lambda entry: out.print(
            epoch_line(entry), highlight=False, soft_wrap=True
        )
        watcher.on_start = lambda state: out.print(
            start_line(state), highlight=False, soft_wrap=True
        )
        watcher.on_progress = lambda text: out.print(
            _escaped(text), style="dim", highlight=False, soft_wrap=True
        )
    wanted = Wanted(session, until_sealed, available_now)
    job = Stream(settings, _query(settings), wanted, watcher, clock)
    if job.is_done():
        return
    watcher.on_progress("checking this machine, Kafka and the tables")
    failed = doctors.blocking(doctors.check_all(settings, thorough=False))
    if failed:
        out.print(doctors.table(failed))
        _fail("not started: it would fail later (all checks: spillway doctor)", FAILED)
    with serving(settings, watcher) as address:
        if address is not None and not quiet:
            _say(f"figures for Prometheus: {address}")
        try:
            job.run()
        except SessionNotOpen as error:
            _fail(str(error), FAILED)


CloseDelay = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="SECONDS",
        help="How long after a close a scheduler closes the day: session.grace_s must not be "
        "longer.",
    ),
]


@app.command()
def seal(
    session: Annotated[str, _dated("The session's date.")],
    at: Annotated[
        str | None,
        typer.Option(
            help="now (the default), close (of the calendar, plus grace) or an RFC 3339 time."
        ),
    ] = None,
    withdraw: Annotated[
        bool,
        typer.Option("--withdraw", help="Take back a seal whose end the stream has not passed."),
    ] = False,
    reason: Annotated[str, typer.Option(help="Why, for the journal.")] = "",
    by: Annotated[str | None, typer.Option(help="Who asks, when it is not this user.")] = None,
    close_delay: CloseDelay = None,
) -> None:
    """End a session: rows up to there belong to it, later ones to the next."""
    from spillway.closing import GraceTooLong, must_outlast_grace
    from spillway.sealing import SealRefused, request_seal, request_withdrawal

    if withdraw and at is not None:
        raise typer.BadParameter("--withdraw takes a seal back, whatever its time: leave out --at")
    settings = _settings()
    if close_delay is not None:
        try:
            must_outlast_grace(settings.session.grace_s, close_delay)
        except GraceTooLong as error:
            _fail(str(error), USAGE)
    asks = by or _who()
    try:
        if withdraw:
            answer = request_withdrawal(settings, session, reason, asks, clock=clock)
        else:
            answer = request_seal(
                settings, _query(settings), session, at or "now", reason, asks, clock=clock
            )
    except SealRefused as error:
        _fail(str(error), FAILED)
    _say(answer)


@app.command()
def rebalance(
    move: Annotated[
        list[str] | None,
        typer.Option(help="A group and its new slot, DEPTH/VALUE:SLOT. May be repeated."),
    ] = None,
    spill: Annotated[
        list[str] | None, typer.Option(help="A slot and what it shall spill, e.g. 0:100MiB.")
    ] = None,
    split: Annotated[
        list[str] | None, typer.Option(help="A group to cut in two, DEPTH/VALUE.")
    ] = None,
    merge: Annotated[
        list[str] | None, typer.Option(help="A range whose two halves shall be one group.")
    ] = None,
    slots: Annotated[
        int | None, typer.Option(help="The number of slots that there shall be.")
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            help="A slot and its memory, e.g. 0:2GiB, until the stream is started again (to keep "
            "it, set state.budget_bytes); 0:default takes it back."
        ),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Decide by this policy instead of rebalance.policy.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why: kept, also of a dry run.")] = "",
    by: Annotated[str | None, typer.Option(help="Who asks, when it is not this user.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Only say what would be done.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Even out the slots by a policy, once; or move, split, merge, spill and resize by hand.

    With no option that says what to do, `rebalance.policy` decides. The stream obeys or refuses
    what is asked for at its next epoch.
    """
    from spillway.rebalance import controller
    from spillway.rebalance.asking import note
    from spillway.rebalance.by_hand import RebalanceRequest, request
    from spillway.rebalance.shown import as_json, table

    wanted = RebalanceRequest(
        move or (), spill or (), split or (), merge or (), slots, budget or ()
    )
    settings = _settings()
    if policy is not None and wanted != RebalanceRequest():
        raise typer.BadParameter("--policy cannot be combined with changes by hand")
    declined: tuple[Any, ...] = ()
    if wanted == RebalanceRequest():
        chosen = policy or settings.rebalance.policy
        decision = controller.run(settings, chosen, by or _who(), reason=reason, dry_run=dry_run)
        answers, declined = decision.asked, decision.advice.declined
    else:
        answers = request(settings, wanted, reason, by or _who(), dry_run=dry_run)
    if reason and (dry_run or not any(outcome.obeyed for _, outcome in answers)):
        asked = [command.kind for command, _ in answers]
        note(settings, by or _who(), reason, dry_run=dry_run, policy=policy, asked=asked)
    if json_:
        sys.stdout.write(json.dumps(as_json(answers, declined)) + "\n")
    else:
        out.print(table(answers, declined, dry_run=dry_run), highlight=False)
    if not all(outcome.obeyed for _, outcome in answers):
        raise typer.Exit(FAILED)


@app.command()
def cleanup(
    session: Annotated[str, _dated("The sealed session's date.")],
    json_: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Append a sealed session's missing results, each once. Run again, it goes on."""
    from spillway.cleanup import cleanup_command

    settings = _settings()
    report = cleanup_command(session, settings, _query(settings), None if json_ else out)
    if json_:
        sys.stdout.write(json.dumps(report) + "\n")


@app.command()
def verify(
    session: Annotated[str, _dated("The session's date.")],
    json_: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
    exhaustive: Annotated[
        bool, typer.Option(help="Join everything again instead of only the keys that fail.")
    ] = False,
) -> None:
    """Prove a session complete, from the raw topics and the results alone. Exit 1 if it is not."""
    from spillway.verify import verdict_table, verify_command

    settings = _settings()
    report = verify_command(session, settings, _query(settings), exhaustive=exhaustive)
    if json_:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        out.print(verdict_table(report))
    if not report["complete"]:
        raise typer.Exit(NOT_COMPLETE)


@app.command()
def maintain(
    dry_run: Annotated[bool, typer.Option(help="Only say what would be done.")] = False,
    keep_spilled_days: Annotated[
        int | None, typer.Option(min=0, help="Instead of maintenance.keep_spilled_days.")
    ] = None,
    keep_statistics_days: Annotated[
        int | None, typer.Option(min=0, help="Instead of maintenance.keep_statistics_days.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Tidy the tables up: drop what finished days need no longer, merge small files, delete others.

    Only days that are proved complete lose anything, and only their spilled rows and statistics.
    It may run beside everything else, and be run again.
    """
    from spillway.maintenance import maintain as tidy
    from spillway.maintenance import shown

    settings = _settings(
        maintenance__keep_spilled_days=keep_spilled_days,
        maintenance__keep_statistics_days=keep_statistics_days,
    )
    report = tidy(
        _warehouse(settings),
        keep_spilled_days=settings.maintenance.keep_spilled_days,
        keep_statistics_days=settings.maintenance.keep_statistics_days,
        dry_run=dry_run,
    )
    if json_:
        sys.stdout.write(json.dumps(report.to_dict()) + "\n")
    else:
        out.print(shown(report), highlight=False)


# ------------------------------------------------------------------------------- looking


@app.command()
def status(
    json_: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    watch: Annotated[bool, typer.Option(help="Go on showing it until Ctrl-C.")] = False,
    report: Annotated[
        Path | None, typer.Option(help="Also write the HTML report to this file.")
    ] = None,
    adaptations: Annotated[
        bool, typer.Option("--adaptations", help="Show the decisions and what they did instead.")
    ] = False,
    groups: Annotated[
        int | None, typer.Option(min=1, help="Show so many of the largest groups instead.")
    ] = None,
) -> None:
    """Show where the stream stands: session, rows, results, memory, spills, lag, delay."""
    from spillway.report import status_command

    settings = _settings()
    if groups is not None:
        from spillway.rebalance.groups import groups_table, largest_groups

        found = largest_groups(_warehouse(settings), groups)
        if json_:
            sys.stdout.write(json.dumps([each.model_dump() for each in found]) + "\n")
        else:
            out.print(groups_table(found, out), highlight=False)
        return
    status_command(
        settings, out, as_json=json_, watch=watch, report=report, adaptations=adaptations
    )


@app.command()
def doctor(
    json_: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    repair: Annotated[
        bool, typer.Option(help="Mend a torn last log entry; tables are redone from the journal.")
    ] = False,
    close_delay: CloseDelay = None,
) -> None:
    """Check everything that the stream needs, and say how to mend what fails."""
    from spillway import doctor as checks

    settings = _settings()
    if repair:
        from spillway.tables.repair import repair as mend

        for line in mend(settings.warehouse.root) or ["nothing had to be mended"]:
            _say(line)
    found = checks.check_all(settings, close_delay_s=close_delay)
    if json_:
        sys.stdout.write(json.dumps([each.as_dict() for each in found]) + "\n")
    else:
        out.print(checks.table(found))
    if checks.blocking(found):
        raise typer.Exit(FAILED)


@app.command()
def demo(
    airflow: Annotated[bool, typer.Option(help="Let a real Airflow run the day.")] = False,
    wait: Annotated[
        bool | None,
        typer.Option(help="Stay up at the end until Ctrl-C (with Airflow in a terminal: yes)."),
    ] = None,
    keep: Annotated[bool, typer.Option(help="Keep the folder of an earlier demo.")] = False,
) -> None:
    """Run a whole trading day here: produce, join with too little memory, seal, clean up, prove."""
    from spillway.demo import demo as run

    if wait is None:
        wait = airflow and out.is_terminal
    raise typer.Exit(run(_settings(), out, airflow=airflow, wait=wait, keep=keep))


@app.command()
def setup() -> None:
    """Fetch and verify the jars that Spark and the embedded broker need. Nothing the second
    time."""
    from spillway import jars
    from spillway.stream import archive

    if code := jars.main():
        raise typer.Exit(code)
    archive.ensure()


# ------------------------------------------------------------------------------- Airflow

airflow_app = typer.Typer(help="An Airflow that is there already.", no_args_is_help=True)
app.add_typer(airflow_app, name="airflow")


@airflow_app.command("dags")
def airflow_dags(
    folder: Annotated[Path, typer.Argument(help="Airflow's dags folder.")],
) -> None:
    """Write the trading day's DAG file into a folder; an equal one is left as it is."""
    from spillway.dag_files import write_dag_files

    for path in write_dag_files(folder):
        _say(f"DAG file: {path}")


# ------------------------------------------------------------------------------- Kafka

kafka_app = typer.Typer(help="The embedded broker (loopback only).", no_args_is_help=True)
app.add_typer(kafka_app, name="kafka")


def _port(settings: Settings) -> int:
    servers = settings.kafka.bootstrap_servers
    host, _, port = servers.split(",")[0].rpartition(":")
    if host not in ("127.0.0.1", "localhost"):
        _fail(
            f"kafka.bootstrap_servers is {servers}: the embedded broker is on 127.0.0.1 only, and "
            "nobody would ask it. Use that broker, or take the setting away",
            USAGE,
        )
    return int(port)


@kafka_app.command("start")
def kafka_start() -> None:
    """Start the embedded broker; a no-op when it runs."""
    from spillway.kafka import broker

    settings = _settings()
    up = broker.start(Path(settings.kafka.data_dir), _port(settings))
    _say(f"Kafka runs at {up.bootstrap} (process {up.pid}, log {up.log})")


@kafka_app.command("stop")
def kafka_stop() -> None:
    """Stop the embedded broker; its data stay."""
    from spillway.kafka import broker

    stopped = broker.stop(Path(_settings().kafka.data_dir))
    _say("Kafka has stopped" if stopped else "Kafka was not running")


@kafka_app.command("status")
def kafka_status(
    json_: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Say whether the embedded broker runs."""
    from spillway.kafka import broker

    now = broker.status(Path(_settings().kafka.data_dir))
    if json_:
        sys.stdout.write(json.dumps(asdict(now)) + "\n")
    elif now.running:
        health = "healthy" if now.healthy else "does not answer"
        _say(f"Kafka runs at {now.bootstrap} (process {now.pid}), {health}; log {now.log}")
    else:
        _say(f"Kafka does not run; its data are in {now.data_dir}")


@app.command()
def topics(
    create: Annotated[
        bool, typer.Option("--create", help="Make those that do not exist; change no other.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List the query's topics: their partitions, and whether they exist. Exit 3 if one does not."""
    from spillway import topics as inputs

    settings = _settings()
    found = inputs.look(settings, _query(settings), create=create)
    if json_:
        sys.stdout.write(json.dumps([each.as_dict() for each in found]) + "\n")
    else:
        out.print(inputs.table(found), highlight=False)
    if missing := inputs.missing(found):
        _fail(
            f"no topic {', '.join(missing)} on {settings.kafka.bootstrap_servers}: run 'spillway "
            "topics --create', or name another one in the query",
            FAILED,
        )


@app.command()
def produce(
    scenario: Annotated[
        str | None, typer.Argument(help="A shipped scenario's name or a TOML file.")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Send recorded rows (JSON lines or Parquet) instead.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="With --replay: the topic.")] = None,
    speed: Annotated[
        float | None,
        typer.Option(min=0, help="1: own timing, 60: a minute a second, 0: as fast as possible."),
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Producer processes.")] = None,
) -> None:
    """Produce a scenario's messages, or replay recorded ones."""
    from spillway.produce.bar import progress_bar
    from spillway.produce.replay import replay as replay_file
    from spillway.produce.run import produce as produce_scenario
    from spillway.produce.summary import sent
    from spillway.topics import unread
    from spillway_schemas.scenario import load_scenario

    settings = _settings()
    servers, options = settings.kafka.bootstrap_servers, settings.kafka.options
    if (scenario is None) == (replay is None):
        raise typer.BadParameter("name a scenario, or a recording with --replay")
    # Before the bar: what is wrong is said alone.
    chosen = None if scenario is None else load_scenario(scenario)
    with progress_bar(console=err) as progress:
        if replay is not None:
            summary = replay_file(
                replay,
                servers,
                options=options,
                topic=topic,
                speed=speed or None,
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
                progress=progress,
            )
    out.print(sent(summary, made=replay is None))
    _say(f"{summary.rows:,} rows in {summary.seconds:.1f} s: {summary.rows_per_s:,.0f} a second")
    if problem := unread([each.topic for each in summary.topics], settings.query):
        err.print(f"[yellow]{_escaped(problem)}[/]", highlight=False, soft_wrap=True)


# ------------------------------------------------------------------------------- quarantine

quarantine_app = typer.Typer(help="Rows that broke their contract.", no_args_is_help=True)
app.add_typer(quarantine_app, name="quarantine")


@quarantine_app.command("list")
def quarantine_list(
    session: Annotated[str | None, _dated("Only this session.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Rows to show.")] = 20,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object a row.")] = False,
) -> None:
    """Show quarantined rows with their coordinates and reasons."""
    from spillway.quarantine import list_rows, table

    rows = list_rows(_warehouse(_settings()), session, limit)
    if json_:
        for row in rows:
            sys.stdout.write(json.dumps(row) + "\n")
    elif rows:
        out.print(table(rows))
    else:
        _say("No row is quarantined" + (f" of session {session}." if session else "."))


@quarantine_app.command("replay")
def quarantine_replay(
    file: Annotated[Path, typer.Argument(help="Mended rows, as `list --json` prints them.")],
) -> None:
    """Send mended rows to their topics again, all or none; they are new rows of the open session.

    The whole file is checked first. When a line is wrong, nothing is sent.
    """
    from spillway.mended import replay_rows

    settings = _settings()
    sent = replay_rows(settings, _query(settings), file)
    _say(f"{sent:,} row{'' if sent == 1 else 's'} sent")


# ------------------------------------------------------------------------------- config

config_app = typer.Typer(help="Settings.", no_args_is_help=True)
app.add_typer(config_app, name="config")


@config_app.command("show")
def config_show(
    json_: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Print every setting with its value, unit and origin."""
    from spillway.config import shown
    from spillway_schemas.settings import catalogue, values

    settings, origins = _with_origins()
    now = values(settings)
    if json_:
        listed = {n: {"value": v, "origin": str(origins[n])} for n, v in now.items()}
        sys.stdout.write(json.dumps(listed, default=str) + "\n")
        return
    out.print(shown(catalogue(), now, origins, out), highlight=False, soft_wrap=True)


# ------------------------------------------------------------------------------- errors


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container a user may have a number only
        return str(os.getuid())


def _say(text: str) -> None:
    """A line of an answer. A terminal wraps it; where it is piped it stays one line."""
    out.print(_escaped(text), highlight=False, soft_wrap=True)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(plain(_told(text)))


def _told(text: str) -> str:
    """Text without secrets of the settings and of addresses: libraries quote them in errors."""
    return hide(text, _loaded.get("secrets", {}))


def _fail(message: str, code: int) -> NoReturn:
    err.print(f"[bold red]spillway:[/] {_escaped(message)}", highlight=False, soft_wrap=True)
    raise typer.Exit(code)


@cache
def _command() -> Callable[..., Any]:
    """All commands with their options, read from the signatures above: once in a process."""
    return typer.main.get_command(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `spillway`."""
    try:
        _command()(args=arguments, standalone_mode=True)
    except SystemExit:
        raise
    except KeyboardInterrupt:
        err.print("stopped")
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the last place that can explain it
        code = getattr(error, "exit_code", FAILED)
        message = str(error) or type(error).__name__
        err.print(f"[bold red]spillway:[/] {_escaped(message)}", highlight=False, soft_wrap=True)
        if code == FAILED:
            log = var_folder() / "last-error.txt"
            log.parent.mkdir(parents=True, exist_ok=True)
            with open(log, "w", opener=open_private) as file:
                file.write(_told(traceback.format_exc()))
            err.print(f"(details: {log})", highlight=False, soft_wrap=True)
        sys.exit(code)
