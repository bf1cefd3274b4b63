"""Writes docs/commands.md from the command line's own objects: `python -m scripts.commands_page`.

A test compares the page with what this makes, so that neither can go on without the other. What
`--help` prints depends on the terminal's width and on typer's version; the objects do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import typer
from markdown.extensions.toc import slugify  # type: ignore[import-untyped]
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from spillway.cli import app
from spillway_schemas import exits
from spillway_schemas.settings import catalogue

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "commands.md"

REPEATED = "May be repeated."
"""How the help text of an option ends that may be; a test holds them to it."""

TYPES = {"str": "text", "int": "whole number", "float": "number", "Path": "path"}

MEANINGS = {
    0: "yes: it was done, or had been done before",
    exits.NOT_COMPLETE: "`verify` or `demo`: results of the day are missing or doubled",
    exits.USAGE: "wrong usage or settings; nothing was done",
    exits.FAILED: "anything else; what is printed says what happened and what to do",
    exits.NOTHING_YET: "there is no warehouse yet, or nothing is in its journal",
    exits.INTERRUPTED: "Ctrl-C (`stream` and `relay` end with 0 after the first one)",
}

MORE = {
    "stream": ("quickstart.md#the-same-step-by-step", "runbook.md#the-stream-has-ended"),
    "seal": ("runbook.md#the-normal-close", "runbook.md#a-seal-was-a-mistake"),
    "rebalance": ("relocation.md", "relocation.md#by-a-policy"),
    "cleanup": (
        "runbook.md#the-normal-close",
        "runbook.md#how-long-will-cleanup-take",
        "runbook.md#cleanup-was-killed",
    ),
    "verify": ("runbook.md#the-normal-close", "runbook.md#verify-says-1"),
    "accept-loss": ("runbook.md#input-is-gone-for-good", "runbook.md#offsets-are-lost"),
    "correct": ("runbook.md#rows-came-after-the-close", "runbook.md#many-rows-are-late"),
    "relay": ("following.md#into-a-kafka-topic",),
    "maintain": ("runbook.md#every-night",),
    "status": ("runbook.md#the-normal-close", "metrics.md"),
    "doctor": ("quickstart.md#the-same-step-by-step", "runbook.md#after-a-power-loss"),
    "demo": ("quickstart.md#one-command",),
    "topics": ("your-query.md#your-broker",),
    "explain": ("your-query.md#look-at-it",),
    "produce": (
        "quickstart.md#the-same-step-by-step",
        "your-query.md#your-own-rows-without-producers",
    ),
    "airflow": ("airflow.md#install-it-into-your-airflow-33",),
    "kafka": ("quickstart.md#the-same-step-by-step",),
    "quarantine list": ("messages.md#look-at-them", "messages.md#what-is-quarantined"),
    "quarantine replay": ("messages.md#send-mended-rows-again",),
    "config": ("settings.md",),
}
"""Where a command is explained. The texts of the links are the headings that they lead to."""

HEAD = """\
# Commands

<!-- Made by `python -m scripts.commands_page`: do not edit. -->

`--help` after any command prints what this page says about it. What to do when, and what the
answers look like: [Quick start](quickstart.md) and [Runbook](runbook.md).
"""

BEFORE = """\
## Before the command

These options stand between `spillway` and the command's name. `--config` and `--set` choose the
[settings](settings.md) of every command; a later source wins, and `--set` is the last one.

```
spillway --config FILE --set state.slots=4 stream
```
"""

EXITS = """\
## Exit codes

Every command uses the same ones. What to do about each: [Runbook](runbook.md#exit-codes).

| code | meaning |
|---|---|"""


def page() -> str:
    """The whole page."""
    program = commands_of(app)
    parts = [HEAD, BEFORE, table(program), EXITS]
    parts[-1] += "".join(f"\n| {code} | {what} |" for code, what in MEANINGS.items()) + "\n"
    for path, command in walk(program):
        parts += entry(path, command)
    return "\n".join(parts).rstrip() + "\n"


def commands_of(program: typer.Typer) -> TyperGroup:
    """The commands as objects."""
    group = typer.main.get_command(program)
    assert isinstance(group, TyperGroup)
    return group


def walk(group: TyperGroup, above: str = "") -> Iterator[tuple[str, TyperCommand | TyperGroup]]:
    """Names and commands below a group, in the order of `--help`."""
    for name, command in group.commands.items():
        assert isinstance(command, TyperCommand | TyperGroup)
        if command.hidden:
            continue
        yield f"{above}{name}", command
        if isinstance(command, TyperGroup):
            yield from walk(command, f"{above}{name} ")


def entry(path: str, command: TyperCommand | TyperGroup) -> Iterator[str]:
    """One command: how it is written, what it does, what it takes, where more is said."""
    yield f"{'###' if ' ' in path else '##'} {path}\n"
    if isinstance(command, TyperCommand):
        yield f"```\n{usage(path, command)}\n```\n"
    yield f"{linked(command.help or '')}\n"
    if isinstance(command, TyperCommand) and parameters(command):
        yield table(command)
    if path in MORE:
        yield f"More: {'; '.join(link(target) for target in MORE[path])}.\n"


def usage(path: str, command: TyperCommand) -> str:
    """The command with all that it needs."""
    options = [each for each in parameters(command) if isinstance(each, TyperOption)]
    words = ["spillway", path]
    words += [
        f"{each.opts[0]} {each.metavar or kind(each).upper()}" for each in options if each.required
    ]
    if not all(each.required for each in options):
        words.append("[OPTIONS]")
    for each in parameters(command):
        if isinstance(each, TyperArgument):
            words.append(name_of(each) if each.required else f"[{name_of(each)}]")
    return " ".join(words)


def table(command: TyperCommand | TyperGroup) -> str:
    """What a command takes, a row each."""
    rows = ["| option | takes | what it does |", "|---|---|---|"]
    for each in parameters(command):
        help_ = (each.help or "").removesuffix(REPEATED).strip()
        rows.append(f"| {written(each)} | {takes(each)} | {cell(linked(help_))} |")
    return "\n".join(rows) + "\n"


def parameters(command: TyperCommand | TyperGroup) -> list[TyperArgument | TyperOption]:
    """Arguments first, then options; what is hidden is left out."""
    shown = [
        each
        for each in command.params
        if isinstance(each, TyperArgument | TyperOption) and not each.hidden
    ]
    return sorted(shown, key=lambda each: isinstance(each, TyperOption))


def written(parameter: TyperArgument | TyperOption) -> str:
    """The parameter's names, as they are typed."""
    if isinstance(parameter, TyperArgument):
        return f"`{name_of(parameter)}`"
    return ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def name_of(argument: TyperArgument) -> str:
    """What stands for an argument in a usage line."""
    return argument.metavar or (argument.name or "").upper()


def takes(parameter: TyperArgument | TyperOption) -> str:
    """What is written behind an option, and what holds without it."""
    said = []
    if not (isinstance(parameter, TyperOption) and parameter.is_flag):
        said.append(f"`{parameter.metavar}`" if parameter.metavar else kind(parameter))
    if parameter.min is not None:
        said.append(f"{parameter.min:g} or more")
    if parameter.required:
        said.append("required")
    if isinstance(parameter, TyperOption) and parameter.multiple:
        said.append("may be repeated")
    if parameter.default not in (None, False, ""):
        said.append(f"default `{parameter.default}`")
    return cell(", ".join(said)) or "–"


def kind(parameter: TyperArgument | TyperOption) -> str:
    """The type in words."""
    return TYPES[parameter.type_descriptor.annotation.__name__]


def linked(text: str) -> str:
    """A help text whose settings lead to their explanation and whose options are code."""
    settings = {each.name for each in catalogue()}

    def marked(found: re.Match[str]) -> str:
        name = found[0].strip("`")
        if name in settings:
            return f"[`{name}`](settings.md#{slugify(name, '-')})"
        return f"`{name}`" if found[0].startswith(("`", "--")) else name

    return re.sub(r"`[^`]+`|(?<!\S)--[a-z][a-z-]*|\b[a-z]+\.[a-z_]+\b", marked, text)


def link(target: str) -> str:
    """A link to a page or to a part of it, by its heading, which must exist."""
    name, _, anchor = target.partition("#")
    title, *headings = re.findall(r"^#+ (.+)$", (DOCS / name).read_text(), re.M)
    parts = {slugify(each, "-"): f"{title}: {each}" for each in headings}
    return f"[{parts[anchor] if anchor else title}]({target})"


def cell(text: str) -> str:
    """Text as a table's cell takes it."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
