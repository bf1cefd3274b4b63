"""The command line: its groups, the options before a command, and how errors end it.

Exit codes everywhere: 0 yes, 1 `verify` found the day not complete, 2 wrong usage or settings,
3 anything else (an uncaught error too), 4 there is no warehouse or no journal yet to work on.
Each command has a module of its own in `spillway.commands`.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from typer.core import TyperGroup, TyperOption

from spillway.commands import (
    airflow,
    cleanup,
    config,
    correct,
    demo,
    doctor,
    explain,
    given,
    kafka,
    losses,
    maintain,
    produce,
    quarantine,
    rebalance,
    relay,
    seal,
    setup,
    status,
    stream,
    topics,
    verify,
)
from spillway.commands.terminal import complain, err, nobody_reads, say, told
from spillway.places import var_folder
from spillway.private import open_private
from spillway_schemas.exits import FAILED, INTERRUPTED, USAGE
from spillway_schemas.settings import QUERIES

_NUMBERS = {
    "int_parsing": "a whole number is needed",
    "float_parsing": "a number is needed",
    "greater_than_equal": "{ge:g} or more is needed",
}
"""pydantic's words, which are for programmers, by its kind of error."""


def _in_numbers(error: typer.BadParameter) -> None:
    """Say in plain words what number an option takes."""
    cause = error.__cause__
    if not isinstance(cause, ValidationError):
        return
    item = cause.errors(include_url=False)[0]
    if words := _NUMBERS.get(item["type"]):
        error.message = f"{words.format(**item.get('ctx', {}))} (got {item['input']!r})"


class CommandGroup(TyperGroup):
    """All commands. Says where an option of every command belongs, and what a number must be."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. What it raises has a hint where such an option stands too late."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            _in_numbers(error)
            raise
        except BrokenPipeError:
            nobody_reads()
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
    cls=CommandGroup,
    help="An exact stream join that outgrows its memory.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (
    stream.stream,
    seal.seal,
    rebalance.rebalance,
    cleanup.cleanup,
    verify.verify,
    losses.accept_loss,
    correct.correct,
    relay.relay,
    maintain.maintain,
    status.status,
    doctor.doctor,
    demo.demo,
    setup.setup,
    topics.topics,
    explain.explain,
    produce.produce,
)
"""In the order of `--help`."""
GROUPS = {
    "airflow": airflow.app,
    "kafka": kafka.app,
    "quarantine": quarantine.app,
    "config": config.app,
}


def _flowing(text: str) -> str:
    """A docstring with a line for each paragraph: the terminal breaks them where it must."""
    return "\n\n".join(" ".join(each.split()) for each in text.split("\n\n"))


for _command in COMMANDS:
    app.command(help=_flowing(_command.__doc__ or ""))(_command)
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)


@app.callback(invoke_without_command=True)
def common(
    ctx: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The settings file. Without it: spillway.toml of the working directory, when it "
            "exists.",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting, e.g. `--set state.slots=4`. May be repeated.",
        ),
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Which of the settings file's queries (`queries.NAME`), or another query: the "
            "same as `--set query=NAME`.",
        ),
    ] = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", help="With --version: the versions of packages and file formats, too."
        ),
    ] = False,
) -> None:
    """Options of every command."""
    if version:
        from spillway.versions import version_lines

        for line in version_lines(verbose):
            say(line)
        raise typer.Exit
    if verbose:
        raise typer.BadParameter("--verbose goes with --version")
    if ctx.invoked_subcommand is None:
        ctx.fail("Missing command.")
    given.before_the_command(config, set_ or (), query)


@cache
def _program() -> Callable[..., Any]:
    """All commands with their options, read from their signatures: once in a process."""
    found = typer.main.get_command(app)
    _name_values(found)
    return found


_VALUES = {"str": "TEXT", "int": "N", "Path": "FILE"}
"""What `--help` calls the value of an option that has no word of its own."""


def _name_values(command: Any, parent: Any = None) -> None:
    """Give the options of a command, and of those below it, a word for their values, as `FILE`; a
    flag has none. `--help` has the types of Python otherwise, and `<bool>` for a flag."""
    context = typer.Context(
        command, info_name=command.name, parent=parent, **command.context_settings
    )
    for each in command.get_params(context):
        if isinstance(each, TyperOption) and each.metavar is None:
            kind = each.type_descriptor.annotation.__name__
            each.metavar = "" if each.is_flag else _VALUES[kind]
    for each in getattr(command, "commands", {}).values():
        _name_values(each, context)


def _is_text(argument: str) -> bool:
    """Whether it can be written: the system's bytes that are no text come as lone surrogates."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _error_file(query: str | None) -> Path:
    """Where the last unexpected error is kept: of each named query its own, for their streams run
    side by side."""
    folder = var_folder() if query is None else var_folder() / QUERIES / query
    return folder / "last-error.txt"


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `spillway`."""
    words = sys.argv[1:] if arguments is None else arguments
    if (odd := next((each for each in words if not _is_text(each)), None)) is not None:
        complain(f"{odd!r} is not UTF-8, as all that the journal keeps must be: write it again")
        sys.exit(USAGE)
    try:
        _program()(args=arguments, standalone_mode=True)
    except SystemExit:
        raise
    except KeyboardInterrupt:
        err.print("stopped")
        sys.exit(INTERRUPTED)
    except BaseException as error:  # noqa: BLE001 - the last place; a panic of Rust's, too
        code = getattr(error, "exit_code", None)
        complain(_in_words(error))
        if code is None:
            _keep_details(traceback.format_exc(), _error_file(given.chosen_query()))
        sys.exit(FAILED if code is None else code)


def _in_words(error: BaseException) -> str:
    """An error, with what to do where it is the system's own and nothing has explained it."""
    from spillway.storage.folders import ADVICE, StorageError  # loads what commands load late

    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and not isinstance(error, StorageError):
        advice = ADVICE.get(error.errno or 0)
        if advice is not None:
            return f"{error.filename}: {advice}" if error.filename else advice
    return text


def _keep_details(trace: str, log: Path) -> None:
    """Keep what a bug is reported with, where that can be done: a disk that is full or read-only,
    or a limit of open files, may be what the error is about."""
    kept = f"(details: {log})"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "w", opener=open_private) as file:
            file.write(told(trace))
    except OSError as error:
        kept = f"(details are not kept: {error})"
    err.print(kept, highlight=False, soft_wrap=True, markup=False)
