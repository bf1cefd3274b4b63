"""The pages against the code: columns, settings, messages, queries, links, nothing from outside."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pydantic import BaseModel
from typer.core import TyperOption

from scripts import commands_page
from scripts.settings_page import OF_THE_MACHINE, PAGE, page
from spillway.cli import app
from spillway.decode import compile_streams, tree_spec
from spillway.engine.join.results import result_schema
from spillway.engine.spill.spillfile import spill_schema
from spillway.tables.definitions import definitions
from spillway_schemas import exits, journal
from spillway_schemas.expressions import FUNCTIONS
from spillway_schemas.messages import SHIPPED, Rejected, fields_of, read
from spillway_schemas.query import load_query
from spillway_schemas.settings import catalogue

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))

SPEC = tree_spec(load_query("symbol"))
TABLES = definitions(result_schema(SPEC), spill_schema(SPEC))
SPARK_TYPES = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.list_(pa.int64()): "array&lt;bigint&gt;",
}


def section(name: str, heading: str, level: int) -> str:
    """The text below a heading, up to the next one."""
    text = (DOCS / name).read_text()
    match = re.search(rf"^{'#' * level} {heading}\n(.*?)(?=^#+ |\Z)", text, re.M | re.S)
    assert match, f"{name} has no section {heading!r}"
    return match[1]


def cells(text: str) -> Iterator[list[str]]:
    """Rows of the tables whose first cell is code."""
    for line in text.splitlines():
        if line.startswith("| `"):
            yield [cell.strip().strip("`") for cell in line.strip("|").split("|")]


# --- tables ----------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES)
def test_every_column_is_described(table: str) -> None:
    schema = TABLES[table].schema
    assert schema is not None
    kinds = {
        f.name: "struct" if pa.types.is_struct(f.type) else SPARK_TYPES[f.type] for f in schema
    }
    wanted = [[f.name, kinds[f.name], "yes" if f.nullable else "no"] for f in schema]
    assert [row[:3] for row in cells(section("tables.md", table, 2))] == wanted


@pytest.mark.parametrize(
    "record",
    [journal.Genesis, journal.Claim, journal.EpochHead, journal.Sealed, journal.SlotTotals],
)
def test_every_field_of_the_journal_is_described(record: type[BaseModel]) -> None:
    named = [row[0] for row in cells(section("tables.md", record.__name__.removesuffix("Head"), 3))]
    assert sorted(named) == sorted(record.model_fields)


# --- settings --------------------------------------------------------------------------------


def test_the_settings_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run: python -m scripts.settings_page"


def test_the_settings_page_is_the_same_on_every_machine() -> None:
    made = {
        each.name for each in catalogue() if each.name in ("state.slots", "state.budget_bytes")
    } | {each.name for each in catalogue() if str(each.default).startswith("/")}
    assert made <= OF_THE_MACHINE.keys() <= {each.name for each in catalogue()}


def test_settings_that_pages_name_exist() -> None:
    names = {each.name for each in catalogue()}
    sections = {name.partition(".")[0] for name in names if "." in name}
    for path in PAGES:
        for found in re.findall(r"`([a-z]+\.[a-z_]+)(?: = [^`]*)?`", path.read_text()):
            if path.parent == DOCS and found.partition(".")[0] in sections:
                assert found in names, f"{path.name}: {found}"


# --- commands --------------------------------------------------------------------------------

PROGRAM = commands_page.commands_of(app)
COMMANDS = dict(commands_page.walk(PROGRAM))


def test_the_commands_page_is_up_to_date() -> None:
    made = commands_page.page()
    assert commands_page.PAGE.read_text() == made, "run: python -m scripts.commands_page"


@pytest.mark.parametrize("path", ["", *COMMANDS])
def test_every_command_and_option_has_a_help_text(path: str) -> None:
    command = COMMANDS[path] if path else PROGRAM
    assert command.help
    for each in commands_page.parameters(command):
        assert each.help, f"{path} {each.name}"
        assert each.help.endswith("."), f"{path} {each.name}: a sentence"
        repeated = isinstance(each, TyperOption) and each.multiple
        assert each.help.endswith(commands_page.REPEATED) == repeated, f"{path} {each.name}"


def test_pages_are_named_for_commands_that_exist() -> None:
    assert commands_page.MORE.keys() <= COMMANDS.keys()


def test_a_switch_has_a_twin_only_where_the_default_depends() -> None:
    """Kills a switch made without its name: `typer.Option(help=...)` adds a `--no-...`."""
    twins = [
        (path, *each.secondary_opts)
        for path, command in COMMANDS.items()
        for each in commands_page.parameters(command)
        if each.secondary_opts
    ]
    assert twins == [("demo", "--no-wait")]


def test_every_exit_code_has_its_meaning() -> None:
    codes = {value for value in vars(exits).values() if isinstance(value, int)}
    assert commands_page.MEANINGS.keys() == codes | {0}


# --- messages and queries --------------------------------------------------------------------


def test_example_messages_are_accepted() -> None:
    text = section("messages.md", "The three streams", 2)
    examples = re.findall(r"```json\n(.*?)\n```", text, re.S)
    assert len(examples) == len(SHIPPED)
    for (name, model), example in zip(SHIPPED.items(), examples, strict=True):
        read(model, example.encode())
        fields = {rule.name: rule.optional for rule in fields_of(model)}
        assert set(json.loads(example)) <= set(fields)
        part = text.split(f"**`{name}`**")[1].split("```json")[0]
        described = {row[0]: "optional" in row[2] for row in cells(part)}
        assert described == fields


STOCK: dict[str, Any] = {"symbol": "A", "ts": "2026-01-05T14:30:00Z", "price": 1.0}
REVIEW: dict[str, Any] = {"symbol": "A", "ts": STOCK["ts"], "reviewer": "r", "rating": 1}
BROKEN: list[tuple[str, bytes | None, str]] = [
    ("stock", None, "tombstone: the record has no value"),
    ("stock", b"", "empty value"),
    ("stock", b'{"symbol":"\xff"}', "not UTF-8 (byte 11)"),
    (
        "stock",
        b"\xef\xbb\xbf" + json.dumps(STOCK).encode(),
        "not JSON: it begins with a byte order mark",
    ),
    (
        "volume",
        b'{"symbol":"AAAAAAAAAAAAAAAAAAAAAA',
        "not JSON: EOF while parsing a string at line 1 column 33",
    ),
    (
        "stock",
        b'{"x":[' + b"1," * 600_000 + b"oops]}",
        "not JSON: expected value behind byte 1048575",
    ),
    ("stock", b"[1]", "a JSON object is needed"),
    ("stock", b'{"x":' * 250 + b"1" + b"}" * 250, "nested too deeply"),
    ("stock", b'{"symbol":"A","price":1.0}', "ts: missing"),
    ("stock", json.dumps(STOCK | {"symbol": None}).encode(), "symbol: a string is needed"),
    ("stock", json.dumps(STOCK | {"price": "1"}).encode(), "price: a number is needed"),
    (
        "volume",
        b'{"symbol":"A","ts":"2026-01-05T14:30:00Z","shares":1.0}',
        "shares: a whole number is needed",
    ),
    (
        "stock",
        b'{"symbol":"A","ts":"2026-01-05T14:30:00Z","price":1e400}',
        "price: a finite number is needed",
    ),
    (
        "volume",
        b'{"symbol":"A","ts":"2026-01-05T14:30:00Z","shares":9223372036854775808}',
        "shares: Input should be less than or equal to 9223372036854775807",
    ),
    (
        "review",
        json.dumps(REVIEW | {"rating": 9}).encode(),
        "rating: Input should be less than or equal to 5",
    ),
    (
        "stock",
        json.dumps(STOCK | {"ts": "2026-01-05T14:30:00"}).encode(),
        "ts: not a time with an offset such as 2026-01-05T14:30:00Z",
    ),
    (
        "stock",
        json.dumps(STOCK | {"ts": "2026-02-30T14:30:00Z"}).encode(),
        "ts: no such day or time",
    ),
]


@pytest.mark.parametrize(("stream", "value", "reason"), BROKEN, ids=[b[2] for b in BROKEN])
def test_reasons_are_as_the_page_says(stream: str, value: bytes | None, reason: str) -> None:
    with pytest.raises(Rejected) as refused:
        read(SHIPPED[stream], value)
    assert str(refused.value) == reason
    assert f"`{reason}`" in section("messages.md", "What is quarantined", 2)


def test_the_example_query_works(tmp_path: Path) -> None:
    text = section("your-query.md", "A query file", 2)
    example = re.search(r"```toml\n(.*?)```", text, re.S)
    assert example
    file = tmp_path / "trades.toml"
    file.write_text(example[1])
    query = load_query(str(file))
    assert [plan.topic for plan in compile_streams(query)] == ["stock", "trades-v2"]
    names = re.findall(r"`(\w+)`", text.split("Its results have the columns")[1])
    assert names == result_schema(tree_spec(query)).names


def test_every_function_is_listed() -> None:
    text = section("your-query.md", "Expressions", 3)
    quoted = " ".join(line[1:] for line in text.splitlines() if line.startswith(">"))
    assert {name.strip() for name in quoted.split(",")} == FUNCTIONS


def test_toml_on_the_pages_is_toml() -> None:
    for path in PAGES:
        for text in re.findall(r"^```toml\n(.*?)^```", path.read_text(), re.M | re.S):
            tomllib.loads(text)


# --- the site --------------------------------------------------------------------------------


def test_every_page_is_in_the_navigation() -> None:
    def files(nav: Any) -> Iterator[str]:
        for entry in nav if isinstance(nav, list) else nav.values():
            if isinstance(entry, str):
                yield entry
            else:
                yield from files(entry)

    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert sorted(files(config["nav"])) == sorted(str(p.relative_to(DOCS)) for p in PAGES)


def test_links_of_the_readme_exist() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / "README.md").read_text()):
        assert (ROOT / target).exists(), target


def test_nothing_is_loaded_from_elsewhere() -> None:
    config = (ROOT / "mkdocs.yml").read_text()
    assert "font: false" in config
    picture = (DOCS / "pictures" / "data-way.svg").read_text()
    for text in (config, picture.replace("http://www.w3.org/2000/svg", "")):
        assert not re.search(r"https?://|@import|mermaid", text)
    for path in PAGES:
        assert not re.search(r"!\[[^]]*\]\(https?:|<(script|iframe|img)", path.read_text())


# --- contributing ------------------------------------------------------------------------------

CHANGES = (
    *("a policy", "a decoder", "a command", "a column of `results`", "a table"),
    *("a chart on the page", "a metric", "an Airflow operator", "a victim order", "a setting"),
)


def test_a_newcomer_finds_where_changes_belong() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines()}
    for change in CHANGES:
        where, how = rows[change].split(" | ")[1:]
        assert "`" in where, f"{change}: where it belongs"
        assert "`" in how, f"{change}: what says whether it is right"


MADE = {"site/", "var/"}
"""What `make docs` and `make setup` make, there or not."""


def test_paths_in_contributing_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`([\w./-]+(?:/|\.(?:py|md|toml|js|yml)))`", text))
    lost = [
        path
        for path in sorted(named - MADE)
        if not any((root / path).exists() for root in (ROOT, ROOT / "jobs" / "spillway"))
    ]
    assert not lost
    assert named >= MADE


def test_make_measure_runs_every_program_of_the_table() -> None:
    listed = re.findall(
        r"^\| `python -m benchmarks\.(\w+)", (ROOT / "CONTRIBUTING.md").read_text(), re.M
    )
    told = re.search(r"^MEASURED := (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert told is not None
    assert sorted(told[1].split()) == sorted(listed)
    assert all((ROOT / "benchmarks" / f"{each}.py").exists() for each in listed)


def test_every_folder_of_the_jobs_has_its_line() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for path in (ROOT / "jobs" / "spillway").iterdir():
        name = f"{path.name}/" if (path / "__init__.py").exists() else path.name
        if name.endswith(("/", ".py")) and not name.startswith("_"):
            assert f"`{name}`" in text, f"{name}: what lies there?"


def test_nothing_is_installed_by_a_name_that_is_somebody_elses() -> None:
    """Kills: `pip install spillway`, in an error's text, too. On PyPI that is another program."""
    for path in [*PAGES, ROOT / "README.md", *(ROOT / "jobs").rglob("*.py")]:
        assert not re.search(r"pip install [^\n`]*?[\"' ]spillway\b", path.read_text()), path.name


@pytest.mark.parametrize(
    "limit",
    [
        "closed day of an outer join cannot be",
        "nor can sessions that carry",
        "relay](docs/following.md) does not survive a changed query",
        "Figures are of one machine with two cores",
    ],
)
def test_the_first_page_says_what_is_not_done(limit: str) -> None:
    """Whoever chooses by the README alone must not find it out later."""
    section = (ROOT / "README.md").read_text().split("what it does not do", 1)[1]
    assert limit in section
