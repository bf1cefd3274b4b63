"""Formats with a number: `spillway --version --verbose` and docs/releases.md have all of them.

Kills: a format constant that `formats` does not list, one written where no constant names it, and
one that the page leaves out. What a version does with the files of another one is in
`test_statefiles`, `test_snapshots`, `test_readmodel` and `test_command_lines`.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from spillway import versions
from spillway.cli import main
from spillway.tables import journal
from spillway.tables.errors import UnknownEntry
from spillway.tables.warehouse import Warehouse
from spillway_schemas.journal import Epoch
from tests.report_journal import DAY, make_day, open_warehouse

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("schemas", "jobs", "plugins")
NUMBERED = re.compile(r"(?:^|_)(?:FORMAT|VERSION|REVISION)$")


def modules() -> Iterator[tuple[str, ast.Module]]:
    for source in SOURCES:
        for path in (ROOT / source).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT / source).with_suffix("").parts)
            yield name, ast.parse(path.read_text())


MODULES = dict(modules())


def assigned(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Names that statements give a value."""
    for each in body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.value:
            yield each.target.id, each.value
        elif isinstance(each, ast.Assign):
            yield from ((t.id, each.value) for t in each.targets if isinstance(t, ast.Name))


def is_number(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and type(value.value) is int


def constants(tree: ast.Module) -> set[str]:
    """Format constants of a module."""
    return {n for n, value in assigned(tree.body) if NUMBERED.search(n) and is_number(value)}


def written_out(tree: ast.Module) -> Iterator[int]:
    """Lines with a format that no constant names: a field's default, or a member of a JSON."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for name, value in assigned(node.body):
                if name in ("format", "version") and is_number(value):
                    yield value.lineno
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                named = isinstance(key, ast.Constant) and key.value in ("format", "version")
                if named and is_number(value):
                    yield value.lineno


def test_every_format_is_listed() -> None:
    made = {(module, name) for module, tree in MODULES.items() for name in constants(tree)}
    [function] = ast.parse(inspect.getsource(versions.formats)).body
    imports = [node for node in ast.walk(function) if isinstance(node, ast.ImportFrom)]
    listed = {(str(node.module), alias.name) for node in imports for alias in node.names}
    assert listed == made
    assert len(versions.formats()) == len(made)


def test_no_format_is_without_a_constant() -> None:
    found = {name: lines for name, tree in MODULES.items() if (lines := list(written_out(tree)))}
    assert not found


def test_the_search_finds_them() -> None:
    source = (
        "FORMAT: Literal[1] = 1\nROW_VERSION = 2\nJAVA_VERSIONS = (17,)\nVERSION = '0.1'\n"
        "class Kept:\n    format: int = 4\n    version: int = ROW_VERSION\n"
        "facts = {'format': 5, 'version': FORMAT}\n"
    )
    tree = ast.parse(source)
    assert constants(tree) == {"FORMAT", "ROW_VERSION"}
    assert sorted(written_out(tree)) == [6, 8]


def test_the_page_has_every_format() -> None:
    text = (ROOT / "docs" / "releases.md").read_text()
    table = text.split("| format of |", 1)[1].split("\n\n", 1)[0]
    named = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert named == list(versions.formats())


def test_the_version_is_one() -> None:
    """Kills: a release whose images, pages or CHANGELOG still name the version before."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] == version
    paths = [*(ROOT / "docker").rglob("*"), *(ROOT / "docs").glob("*.md")]
    text = "\n".join(path.read_text() for path in paths if path.is_file())
    tags = re.findall(r"\bspillway(?:-airflow)?:(\d+\.\d+\.\d+)", text)
    tags += re.findall(r"^(?:appV|v)ersion: (\S+)", text, re.M)  # of the chart
    assert len(tags) >= 6
    said = re.findall(r"\bversion (\d+\.\d+\.\d+)|git tag v(\S+?)`", text)
    assert len(said) == 2
    assert {*tags, *("".join(each) for each in said)} == {version}


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("cuts", [{"ranges": None}], "the ranges of cuts are no list"),
        ("cuts", [{"ranges": [5]}], "5 is not a group"),
        ("cuts", [{"ranges": ["9999999999/1"]}], "is not a group"),
        ("read", [{"topic": "a", "partition": [0], "rows": 5}], "counts of a lack rows, rejected"),
        ("read", [{"partition": [0]}], "counts of None lack rows"),
        ("tables", ["results"], r"names files of \['results'\], which are not there"),
    ],
)
def test_an_entry_of_another_shape_is_refused(
    field: str, value: object, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: an entry whose columns have other types, which ends in a TypeError."""
    warehouse = open_warehouse(str(tmp_path / "w"))
    entries = make_day(2).entries
    rows = [journal.journal_row(entry) for entry in entries]
    rows[-1]["entry"] = json.dumps({**json.loads(rows[-1]["entry"]), field: value})
    written = iter(rows)
    monkeypatch.setattr(journal, "journal_row", lambda _: next(written))
    warehouse.journal.append(*entries)
    with pytest.raises(UnknownEntry, match=what):
        warehouse.journal.read()


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_no_entry_has_a_number_that_json_cannot_say(odd: float) -> None:
    """Kills: a figure that is written as null, so that nobody can read the journal again."""
    last = make_day(2).last
    for wrong in ({"seconds": {"job": odd}}, {"slots": [{**dict(last.slots[0]), "skew": odd}]}):
        with pytest.raises(ValidationError, match="finite number"):
            Epoch(**{**dict(last), **wrong})


def from_a_later_version(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> int:
    """A day whose last entry has a field that this version does not know; that entry's number."""
    entries = make_day(4).entries
    made = journal.journal_row

    def later(entry: object) -> dict[str, object]:
        row = made(entry)  # type: ignore[arg-type]
        if entry is entries[-1]:
            row["entry"] = json.dumps({**json.loads(row["entry"]), "weather": "fair"})
        return row

    monkeypatch.setattr(journal, "journal_row", later)
    warehouse.journal.append(*entries)
    return len(entries) - 1


def test_a_journal_of_a_later_version_is_refused_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kills: an entry whose unknown fields are passed over, or that ends in a traceback."""
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))
    root = str(tmp_path / "w")
    warehouse = open_warehouse(root)
    n = from_a_later_version(warehouse, monkeypatch)
    for read in (warehouse.journal.read, warehouse.journal.state):
        with pytest.raises(UnknownEntry, match=rf"entry {n} of the journal.*weather"):
            read()
    before = sorted(p for p in Path(root).rglob("*") if p.is_file())
    for command in (["status"], ["cleanup", "--session", DAY], ["rebalance"]):
        with pytest.raises(SystemExit) as ended:
            main(["--set", f"warehouse.root={root}", *command])
        assert ended.value.code == 2
        assert "use that one or a newer one for this warehouse" in capsys.readouterr().err
    assert sorted(p for p in Path(root).rglob("*") if p.is_file()) == before
