"""Lines for people: answers on stdout, errors on stderr, secrets in neither."""

from __future__ import annotations

import getpass
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

import typer
from pydantic import SecretStr
from rich.console import Console

from spillway.plain import plain
from spillway_schemas.exits import FAILED
from spillway_schemas.secret import hide, hide_credentials


class _Console(Console):
    """One that ends as the command does when nobody reads it."""

    def on_broken_pipe(self) -> None:
        """End the process."""
        self.quiet = True
        nobody_reads()


out = _Console()
err = _Console(stderr=True)

_secrets: list[Mapping[str, SecretStr]] = []
"""Settings that may hold some: texts of libraries quote them."""


def keep_secret(*tables: Mapping[str, SecretStr]) -> None:
    """Show nothing of these settings' secrets from now on, nor of those of before: a command may
    read the settings of one query after those of another."""
    _secrets.extend(each for each in tables if each and each not in _secrets)


def say(text: str) -> None:
    """A line of an answer. A terminal wraps it; where it is piped it stays one line."""
    out.print(escaped(text), highlight=False, soft_wrap=True)


def nobody_reads() -> NoReturn:
    """End the process when its output has a reader no more: with 3, for 1, which typer and rich
    have for it, says of a day that it is not complete."""
    complain("nobody reads the output any more (broken pipe)")
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:  # Python would fail once more when it flushes at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    raise SystemExit(FAILED)


def say_json(found: object, default: Callable[[object], object] | None = None) -> None:
    """An answer for programs: one line of JSON, which no console wraps or colours.

    `default`: what becomes of values that JSON does not have; without it they are an error.
    """
    sys.stdout.write(json.dumps(found, default=default) + "\n")
    sys.stdout.flush()  # here a broken pipe can be told, at Python's end it cannot


def complain(text: str) -> None:
    """The line of an error."""
    err.print(f"[bold red]spillway:[/] {escaped(text)}", highlight=False, soft_wrap=True)


def warn(text: str) -> None:
    """A line that a person may have to act on, beside the answer."""
    err.print(f"[yellow]{escaped(text)}[/]", highlight=False, soft_wrap=True)


def fail(message: str, code: int) -> NoReturn:
    """End the command with a message."""
    complain(message)
    raise typer.Exit(code)


def escaped(text: str) -> str:
    """Text as the console takes it: nothing in it is markup, a control character or a secret."""
    from rich.markup import escape

    return escape(plain(told(text)))


def told(text: str) -> str:
    """Text without secrets of the settings and of addresses: libraries quote them in errors."""
    for options in _secrets:
        text = hide(text, options)
    return hide_credentials(text)


def who() -> str:
    """The user, as the journal has whoever asks."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container a user may have a number only
        return str(os.getuid())
