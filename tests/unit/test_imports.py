"""Imports go one way: spillway_schemas <- engine, policy, protocol, decode <- edges <- entry
points.

What a folder may import follows from its name; this test is the list. A folder that is not
listed runs things: it may import every layer below, but no entry point.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

OURS = ("spillway", "spillway_schemas")

STANDARD = sys.stdlib_module_names

PURE = {"numpy", "pyarrow", "pydantic", "pydantic_core", "annotated_types"}
"""What the core may use besides the standard library."""

ALLOWED: dict[str, tuple[set[str], set[str]]] = {
    # folder or module: (parts of spillway that it may import, other packages). All may import
    # `spillway_schemas`; CONTRIBUTING.md says the same.
    "spillway_schemas": (set(), PURE | {"pydantic_settings", "polars"}),
    "spillway.policy": (set(), PURE),
    "spillway.protocol": ({"policy"}, PURE),
    "spillway.clock": (set(), set()),
    "spillway.calendar": (set(), {"exchange_calendars", "pandas", "pytz"}),
    "spillway.closing": (set(), set()),
    "spillway.plain": (set(), set()),
    "spillway.private": (set(), set()),
    "spillway.allocators": (set(), {"pyarrow"}),
    "spillway.arrow_alone": (set(), {"pyarrow"}),
    "spillway.processes": (set(), set()),
    "spillway.worker_processes": ({"arrow_alone", "processes"}, {"numpy"}),
    "spillway.places": (set(), {"platformdirs"}),
    "spillway.jars": ({"places"}, set()),
    "spillway.dag_files": (set(), set()),
    "spillway.storage": ({"private"}, PURE | {"obstore"}),
    "spillway.engine": ({"policy", "storage"}, PURE),
    "spillway.decode": ({"engine"}, PURE | {"polars", "fastavro", "google"}),
    "spillway.registry": ({"decode", "storage"}, PURE),
    "spillway.kafka": ({"jars", "places", "private"}, PURE | {"kafka", "psutil", "lz4", "crc32c"}),
    "spillway.produce": (
        {"decode", "engine", "kafka", "registry"},
        PURE | {"kafka", "rich", "fastavro", "google"},
    ),
    "spillway.tables": (
        {"allocators", "engine", "private", "protocol", "storage"},
        PURE | {"deltalake"},
    ),
    "spillway.readmodel": (
        {"allocators", "engine", "places", "policy", "private", "protocol", "tables"},
        PURE,
    ),
    "spillway.report": (
        {
            *("allocators", "clock", "engine", "kafka", "plain", "processes"),
            *("protocol", "readmodel", "tables"),
        },
        PURE | {"rich"},
    ),
    "spillway.live": ({"calendar", "policy", "readmodel", "report", "tables"}, PURE),
    "spillway.sealed_input": (
        {"decode", "protocol", "stream", "worker_processes"},
        PURE | {"pyspark"},
    ),
    "spillway.verify": (
        {
            *("decode", "kafka", "protocol", "registry", "report", "sealed_input"),
            *("storage", "stream", "tables", "worker_processes"),
        },
        PURE | {"polars", "pyspark", "rich"},
    ),
    "spillway.corrections": (
        {
            *("cleanup", "decode", "engine", "kafka", "produce", "protocol", "registry"),
            *("report", "sealed_input", "storage", "stream", "tables"),
        },
        PURE | {"pyspark"},
    ),
    "spillway.estimate": (
        {"calendar", "clock", "decode", "engine", "kafka", "registry", "report", "verify"},
        PURE | {"polars", "rich"},
    ),
    "spillway.following": ({"engine", "protocol", "storage", "tables"}, PURE),
    "spillway.relay": (
        {"decode", "following", "kafka", "produce", "protocol", "report", "tables"},
        PURE | {"polars"},
    ),
    "spillway.losses": ({"clock", "kafka", "protocol", "tables"}, set()),
    "spillway.sealing": ({"calendar", "clock", "kafka", "protocol", "report", "tables"}, set()),
    "spillway.quarantine": ({"storage", "tables"}, PURE | {"rich"}),
    "spillway.mended": ({"decode", "kafka", "registry"}, {"kafka", "pyarrow"}),
    "spillway.maintenance": ({"protocol", "readmodel", "report", "tables"}, {"rich"}),
    "spillway.topics": ({"kafka", "protocol", "tables"}, {"rich"}),
}

DISPLAYS = {"spillway.report", "spillway.live"}
"""What people look at. No decision rests on it: others may have its words, and no figure."""
SHOWING = {*DISPLAYS, "spillway.metrics", "spillway.demo", "spillway.commands"}

ENTRY_POINTS = {"spillway.cli", "spillway.commands"}
"""Nothing below may know a command."""

ONLY_IN: dict[str, set[str]] = {
    # Who may talk to the outside: a second place for one of these is a second way to be wrong.
    "deltalake": {"spillway.tables"},
    "obstore": {"spillway.storage"},
    "kafka": {"spillway.kafka", "spillway.produce", "spillway.mended", "spillway.verify"},
    "pyspark": {
        *("spillway.stream", "spillway.cleanup", "spillway.sealed_input", "spillway.verify"),
        "spillway.corrections",
    },
    "delta": {"spillway.stream", "spillway.cleanup", "spillway.verify"},
    "prometheus_client": {"spillway.metrics"},
    "fastavro": {"spillway.decode", "spillway.produce"},
}

ROOMS: dict[str, set[str]] = {
    # Of the engine: the rooms and modules beside them that one may import.
    "join": {"groups"},
    "state": {"groups", "join"},
    "wire": {"groups", "join", "state"},
    "spill": {"groups", "join", "state", "wire", "statistics"},
    "groups": set(),
    "statistics": {"groups", "state"},
    "tracing": {"groups", "join", "statistics"},
    "replay": {"groups", "join", "state", "wire"},
    "intake": {"groups", "join", "state", "wire", "spill"},
    "hotkeys": {"groups", "join", "state", "spill"},
}
"""The other modules are the parts of a step, and may import all."""


def modules() -> Iterator[tuple[str, Path]]:
    for top in ("schemas", "jobs"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT / top).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, wherever in it, with the line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            assert node.module is not None
            if node.module in OURS:
                for name in node.names:
                    yield f"{node.module}.{name.name}", node.lineno
            else:
                yield node.module, node.lineno


def part_of(module: str) -> str:
    """The folder (or top-level module) of ours that a module belongs to: `spillway.engine`."""
    names = module.split(".")
    return names[0] if names[0] == "spillway_schemas" else ".".join(names[:2])


def ours(module: str) -> bool:
    return module.split(".")[0] in OURS


FILES = [pytest.param(name, path, id=name) for name, path in modules()]


@pytest.mark.parametrize(("name", "path"), FILES)
def test_imports_go_one_way(name, path):
    part = part_of(name)
    for module, line in imported(path):
        where = f"{path.relative_to(ROOT)}:{line} imports {module}"
        if ours(module):
            target = part_of(module)
            assert target not in ENTRY_POINTS or part in ENTRY_POINTS, where
            if part in ALLOWED and target not in {part, "spillway_schemas"}:
                assert target.removeprefix("spillway.") in ALLOWED[part][0], where
            if target in DISPLAYS and part not in SHOWING:
                assert module == "spillway.report.words", where
            if part == target == "spillway.engine" and len(room := name.split(".")) > 2:
                other = module.split(".")[2]
                assert other in ROOMS.get(room[2], {other}) | {room[2]}, where
        else:
            package = module.split(".")[0]
            if part in ALLOWED and package not in STANDARD:
                assert package in ALLOWED[part][1], where
            if package in ONLY_IN:
                assert part in ONLY_IN[package], where


def test_a_proof_shares_no_code_with_what_it_proves() -> None:
    """By the same code it would prove nothing."""
    proves, _ = ALLOWED["spillway.verify"]
    assert not proves & {"engine", "cleanup", "corrections"}
    for name in ("corrections", "cleanup", "engine"):
        allowed, _ = ALLOWED.get(f"spillway.{name}", (set(), set()))
        assert "verify" not in allowed


def test_contributors_are_told_what_each_folder_may_import() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    _, _, table = text.partition("| folder | what lies there | may import |\n")
    rows = [line.strip("| ").split(" | ") for line in table.partition("\n\n")[0].splitlines()[1:]]
    said = {
        folder.removesuffix(".py").rstrip("/"): set(re.findall(r"`([a-z_]+)`", imports))
        for folders, _, imports in rows
        for folder in folders.replace("`", "").split(", ")
        if not imports.startswith("everything")
    }
    below = {part.removeprefix("spillway."): names for part, (names, _) in ALLOWED.items()}
    del below["spillway_schemas"]
    assert said == below


def test_folders_do_not_import_in_a_circle():
    graph: dict[str, set[str]] = {}
    for name, path in modules():
        targets = {part_of(m) for m, _ in imported(path) if ours(m)}
        graph.setdefault(part_of(name), set()).update(targets - {part_of(name)})
    done: set[str] = set()

    def visit(part: str, above: tuple[str, ...]) -> None:
        assert part not in above, " -> ".join((*above, part))
        if part not in done:
            for target in sorted(graph.get(part, ())):
                visit(target, (*above, part))
            done.add(part)

    for part in sorted(graph):
        visit(part, ())


@pytest.mark.parametrize("folder", ["plugins", "dags"])
def test_airflow_parses_without_spark(folder):
    for path in sorted((ROOT / folder).rglob("*.py")):
        top_level = ast.parse(path.read_text()).body
        for node in top_level:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = (
                    [a.name for a in node.names]
                    if isinstance(node, ast.Import)
                    else [node.module or ""]
                )
                heavy = {"pyspark", "delta", "deltalake", "pandas", "kafka"}
                assert not {n.split(".")[0] for n in names} & heavy, f"{path}:{node.lineno}"


def test_no_file_has_a_name_that_says_nothing():
    vague = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}
    assert not [name for name, _ in modules() if name.split(".")[-1] in vague]


def test_no_two_classes_have_one_name() -> None:
    """Of what is installed: who reads a name in a traceback knows which class it is."""
    found = Counter(
        node.name
        for package in ("jobs", "schemas", "plugins")
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert len(found) > 100
    assert [name for name, count in found.items() if count > 1] == []


def tables_of_modules() -> Iterator[tuple[Path, list[str]]]:
    """The folders whose head has a table of modules, with the first column's lines. Of commands
    each is named by `spillway --help`."""
    for path in sorted((ROOT / "jobs").rglob("__init__.py")):
        head = ast.get_docstring(ast.parse(path.read_text())) or ""
        rows = [line.split("|")[1] for line in head.splitlines() if line.startswith("| `")]
        if rows and path.parent.name != "commands":
            yield path.parent, rows


@pytest.mark.parametrize(
    ("folder", "rows"), [pytest.param(*each, id=each[0].name) for each in tables_of_modules()]
)
def test_a_table_of_modules_names_each_module_once(folder: Path, rows: list[str]) -> None:
    named = [name for row in rows for name in re.findall(r"`([a-z_]+)`", row)]
    modules = {path.stem for path in folder.glob("*.py")} | {
        path.parent.name for path in folder.glob("*/__init__.py")
    }
    assert sorted(named) == sorted(modules - {"__init__"})
