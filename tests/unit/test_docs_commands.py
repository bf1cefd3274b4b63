"""Every command on the pages is one that the program takes: names, options, forms of values.

Nothing is run: click parses, argparse parses, the Makefile's targets are looked up. Kills: an
option, a command, a target, a setting or a scenario that is renamed while a page still names it.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.testing import CliRunner

from scripts.commands_page import commands_of, walk
from spillway.cli import app
from spillway.policy.registry import POLICIES
from spillway.rebalance import by_hand
from spillway.rebalance.asking import RequestRefused
from spillway_schemas.scenario import load_scenario
from spillway_schemas.settings import load_settings
from tests.doc_blocks import ROOT, spoken, typed

PROGRAM = commands_of(app)
MAKEFILE = (ROOT / "Makefile").read_text()

EXAMPLES = {
    "COMMAND": "status",
    "DATE": "2026-01-05",
    "GROUP": "9/17",
    "GROUP:SLOT": "9/17:1",
    "FACTOR": "60",
    "FILE": "spillway.toml",
    "FOLDER": "dags",
    "N": "2",
    "NAME": "pooled",
    "NAME=VALUE": "state.slots=4",
    "SECONDS": "600",
    "section.name=value": "state.slots=4",
    "SLOT:BYTES": "0:100MiB",
    "TEXT": "why",
    "TIME": "2026-01-05T16:10:00-05:00",
    "YYYY-MM-DD": "2026-01-05",
}
"""What stands on a page for a value, and a value."""

TYPED = sorted(set(typed()))
SPOKEN = sorted(set(spoken()))


class Wrong(Exception):
    """A page names what is not there; says what."""


def words_of(command: str) -> list[list[str]]:
    """The words of a command line as they would be typed; several where it has alternatives."""
    text = re.sub(r"\[(OPTIONS|SCENARIO)\]|[\[\]]| > \S+$", "", command)
    words = [EXAMPLES.get(word, word) for word in shlex.split(text, comments=True)]
    if words[-1] == "..." and not words[-2].startswith("--"):
        words.pop()
    found: list[list[str]] = [[]]
    for word in words:
        each = word.split("|") if re.fullmatch(r"[a-z]+(\|[a-z]+)+", word) else [word]
        found = [[*before, one] for before in found for one in each]
    return found


def judge(command: str, *, whole: bool) -> None:
    """Raise `Wrong` for a command that does not exist. `whole`: with all that it needs."""
    for words in words_of(command):
        if words[:1] in (["docker"], ["kubectl"], ["helm"]):
            if "exec" not in words:
                continue
            words = words[words.index("spillway") :]
        program = words[0].removeprefix(".venv/bin/")
        if program == "spillway":
            spillway(words[1:], whole=whole)
        elif program == "make":
            make(words[1:])
        elif program.endswith("python") and words[1:2] == ["-m"]:
            module(words[2], words[3:])
        elif not (ROOT / program).exists():
            raise Wrong(f"there is no program {program}")


def spillway(words: list[str], *, whole: bool) -> None:
    """Let click parse the words as it does for the command line; nothing is called."""
    words, context = list(words), None
    command: Any = PROGRAM
    name = "spillway"
    try:
        while True:
            context = command.make_context(name, words, parent=context)
            try:
                values(command, context.params)
            except (AssertionError, ValueError, RequestRefused) as error:
                raise Wrong(str(error)) from error
            if not isinstance(command, TyperGroup):
                return
            rest = [*context._protected_args, *context.args]
            if not rest:
                return
            name, command, words = command.resolve_command(context, rest)
    except typer.Exit:
        return
    except TyperException as error:
        kind = type(error).__name__
        if kind == "NoArgsIsHelpError" or (kind == "MissingParameter" and not whole):
            return
        raise Wrong(error.format_message()) from error  # type: ignore[attr-defined]


def values(command: Any, given: dict[str, Any]) -> None:
    """What click passes on as text, and the command judges."""
    if flags := given.get("set_"):
        load_settings(None, dict(each.split("=", 1) for each in flags), environ={})
    if policy := given.get("policy"):
        assert policy in POLICIES, f"there is no policy {policy}"
    if scenario := given.get("scenario"):
        load_scenario(scenario)
    for text in (*(given.get("split") or ()), *(given.get("merge") or ())):
        by_hand._group(text, joins_of(text))
    for text in given.get("move") or ():
        group, slot = by_hand._pair(text, "")
        assert by_hand._group(group, joins_of(group)), by_hand._number(slot, text)
    for text in (*(given.get("spill") or ()), *(given.get("budget") or ())):
        slot, size = by_hand._pair(text, "")
        assert by_hand._number(slot, text) >= 0
        assert size == "default" or by_hand._bytes(size, text)


def joins_of(group: str) -> tuple[str, ...]:
    """Names of joins for a group of the one that the pages call `abc`, or of a single join."""
    return ("abc", "other") if ":" in group else ("join",)


def make(words: list[str]) -> None:
    """Targets and variables of the Makefile; what goes on to a program is judged as its own."""
    given = dict(word.split("=", 1) for word in words if "=" in word)
    for name in given:
        if not re.search(rf"^{name} \??:?=|\$\({name}\)|^export .*\b{name}\b", MAKEFILE, re.M):
            raise Wrong(f"the Makefile has no variable {name}")
    for target in (word for word in words if "=" not in word):
        recipe = re.search(rf"^{target}:.*\n((?:\t.*\n|\n(?=\t))*)", MAKEFILE, re.M)
        if recipe is None:
            raise Wrong(f"the Makefile has no target {target}")
        for line in recipe[1].splitlines() if "ARGS" in given else ():
            line = line.strip().removeprefix("@").replace("$(ARGS)", given["ARGS"])
            line = line.replace("$(VENV)", ".venv").replace("$(PY)", "python")
            if re.match(r"(\.venv/bin/spillway|python -m (benchmarks|tests))\b[^$]*$", line):
                judge(line, whole=True)


class Parsed(Exception):
    """argparse has taken the arguments."""


def module(name: str, words: list[str]) -> None:
    """The module is there, and its parser takes the words; nothing of it goes on after that."""
    if importlib.util.find_spec(name) is None:
        raise Wrong(f"there is no module {name}")
    if name in ("pip", "pytest"):
        return
    path = Path(*name.split("."))
    places = [ROOT / path / "__main__.py", ROOT / path.with_suffix(".py")]
    source = next((place.read_text() for place in places if place.exists()), "")
    if "argparse" not in source and "import main" not in source:
        if words and "argv" not in source:
            raise Wrong(f"{name} takes nothing, and is given {words}")
        return
    real = argparse.ArgumentParser.parse_args

    def parsed(self: Any, given: Any = None, *_: Any) -> Any:
        real(self, words)
        raise Parsed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parsed)
        patch.setattr(sys, "argv", [name, *words])
        try:
            runpy.run_module(name, run_name="__main__")
        except Parsed:
            return
        except SystemExit as error:
            raise Wrong(f"{name} does not take {words}: {error}") from error
    raise Wrong(f"{name} does not parse its arguments")


@pytest.mark.parametrize(("where", "command"), TYPED, ids=[f"{w} {c}" for w, c in TYPED])
def test_a_command_to_type_is_one(where: str, command: str) -> None:
    try:
        judge(command, whole=True)
    except Wrong as error:
        pytest.fail(f"{where}: `{command}`: {error}")


@pytest.mark.parametrize(("where", "command"), SPOKEN, ids=[f"{w} {c}" for w, c in SPOKEN])
def test_a_command_in_running_text_is_one(where: str, command: str) -> None:
    try:
        judge(command, whole=False)
    except Wrong as error:
        pytest.fail(f"{where}: `{command}`: {error}")


@pytest.mark.parametrize(
    "command",
    [
        "spillway join",
        "spillway status --follow",
        "spillway kafka begin",
        "spillway maintain --no-dry-run",
        "spillway seal --session tomorrow",
        "spillway --set state.slot=4 stream",
        "spillway rebalance --move 9:17",
        "spillway rebalance --policy best",
        "spillway produce no-such-day",
        "spillway status --groups many",
        "make rehearsal",
        "make test SPEED=2",
        "make demo ARGS=--no-waiting",
        "python -m benchmarks.geography",
        "python -m benchmarks.history --years 3",
        "python -m scripts.commands_page --quick",
        "docker compose exec stream spillway produce no-such-day",
    ],
)
def test_what_is_wrong_is_found(command: str) -> None:
    with pytest.raises(Wrong):
        judge(command, whole=True)


def test_what_a_command_needs_may_be_left_out_in_running_text_only() -> None:
    judge("spillway seal", whole=False)
    with pytest.raises(Wrong, match="session"):
        judge("spillway seal", whole=True)


def test_the_overview_lists_every_command() -> None:
    """Kills: a command that is added, and left out of the list in docs/index.md."""
    named = {
        " ".join(words[1:])
        for where, command in TYPED
        if where.startswith("docs/index.md")
        for words in words_of(command)
    }
    leaves = [path for path, each in walk(PROGRAM) if not isinstance(each, TyperGroup)]
    for path in leaves:
        assert any(f"{each} ".startswith(f"{path} ") for each in named), path


def test_what_the_pages_and_help_name_is_whole() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    assert not re.search(r"--[a-z-]+ None", page)
    said = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    assert "queries.NAME" in said  # brackets would be taken for markup
