"""Every recipe of docs/queries.md is run as it stands, on a small day made by hand; those of
docs/following.md on a table that changes under them.

The day has three generations of every key, so it has results of both phases. Recipes in Spark
run in one process of their own; the others run here. A recipe that gives nothing fails.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sqlite3
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spillway import jars
from spillway.decode import tree_spec
from spillway.engine.join.hashing import xxhash64
from spillway.engine.join.kernel import Rows
from spillway.engine.join.results import file_schema, result_schema
from spillway.engine.spill.spillfile import spill_schema, write_spill
from spillway.engine.wire.datafile import write_data_file
from spillway.places import var_folder
from spillway.tables import SessionEvent, Warehouse
from spillway_schemas.filenames import cleanup_name, data_name
from spillway_schemas.journal import Claim, Cut, Epoch, FileRecord, Genesis, Prefix, Sealed
from spillway_schemas.query import load_query
from tests.followed import Followed
from tests.packages import source_paths
from tests.s3_server import KEY, SECRET, S3Server

ROOT = Path(__file__).resolve().parents[2]
PAGE, FOLLOWING = ROOT / "docs" / "queries.md", ROOT / "docs" / "following.md"
DAY, NEXT = "2026-01-05", "2026-01-06"
OPEN = datetime(2026, 1, 5, 14, 30, tzinfo=UTC)
CLOSED = datetime(2026, 1, 5, 21, 5, tzinfo=UTC)
SYMBOLS = ("AAPL", "MSFT", "BRK.B")
EPOCHS = 3
DEPTH = 9
SPEC = tree_spec(load_query("symbol"))
STREAMS = tuple(each.name for each in SPEC.inputs)
QUARANTINED: dict[str, bytes | None] = {
    "not JSON: EOF while parsing an object at line 1 column 1": b"{",
    "not UTF-8 (byte 13)": b'{"symbol": "S\xff\xfe"}',
    "tombstone: the record has no value": None,
    "empty value": b"",
}
"""What the demo's own producers send that is broken."""


# --- recipes ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """One fenced block of the page."""

    heading: str
    tab: str
    language: str
    code: str
    line: int

    def __str__(self) -> str:
        return f"{self.heading} / {self.tab} / line {self.line}"


def recipes(page: Path) -> Iterator[Recipe]:
    heading = tab = ""
    lines = iter(enumerate(page.read_text().splitlines(), 1))
    for number, line in lines:
        if line.startswith("## "):
            heading, tab = line[3:], ""
        elif match := re.fullmatch(r'=== "(.+)"', line):
            tab = match[1]
        elif match := re.fullmatch(r"\s*```(\w*)", line):
            code = itertools.takewhile(lambda each: each[1].strip() != "```", lines)
            text = textwrap.dedent("\n".join(each for _, each in code))
            yield Recipe(heading, tab, match[1], text, number)


RECIPES = list(recipes(PAGE))
SPARK = [each for each in RECIPES if each.tab == "Spark SQL"]
[SPARK_IN_S3] = [each for each in RECIPES if each.tab == "Spark SQL, S3"]
IN_S3 = [each for each in RECIPES if each.tab.endswith(", S3") and each != SPARK_IN_S3]
HERE = [each for each in RECIPES if each not in [*SPARK, *IN_S3, SPARK_IN_S3]]
FOLLOWERS = {each.heading: each.code for each in recipes(FOLLOWING) if each.language == "python"}


def test_every_fenced_block_is_a_recipe_that_is_run() -> None:
    assert {each.language for each in RECIPES} == {"python", "sql"}
    assert {each.tab for each in RECIPES} == {
        "Spark SQL",
        "DuckDB",
        "polars",
        "deltalake",
        "Python",
        "polars, S3",
        "DuckDB, S3",
        "Spark SQL, S3",
    }
    assert len(SPARK) > 10
    assert len(HERE) > 20


# --- the day ---------------------------------------------------------------------------------


def message(stream: str, symbol: str, epoch: int, k: int) -> dict[str, Any]:
    ts = OPEN + timedelta(minutes=epoch, seconds=k)
    match stream:
        case "stock":
            payload: dict[str, Any] = {"price": 100.0 + k, "currency": "USD"}
        case "volume":
            payload = {"shares": 10 * k}
        case _:
            payload = {"reviewer": f"r{k}", "rating": 1 + k % 5, "text": None}
    return {"symbol": symbol, "ts": ts, **payload}


class Day:
    """Rows of each stream, their results, and the warehouse that holds both."""

    def __init__(self, root: Path) -> None:
        self.rows: list[list[tuple[int, dict[str, Any]]]] = []
        for stream in STREAMS:
            order = itertools.product(range(EPOCHS), SYMBOLS, range(2))
            self.rows.append(
                [
                    (e, message(stream, s, e, k) | {"partition": 0, "offset": offset})
                    for offset, (e, s, k) in enumerate(order)
                ]
            )
        self.results = list(self._join())
        self.warehouse = Warehouse(
            str(root), result_schema(SPEC), spill=spill_schema(SPEC), fsync=False
        )
        self._write()

    def _join(self) -> Iterator[dict[str, Any]]:
        """The brute-force join."""
        for combination in itertools.product(*self.rows):
            if len({row["symbol"] for _, row in combination}) > 1:
                continue
            epochs = {epoch for epoch, _ in combination}
            late = len(epochs) > 1
            result: dict[str, Any] = {"symbol": combination[0][1]["symbol"]}
            for stream, (_, row) in zip(STREAMS, combination, strict=True):
                result |= {f"{stream}_{name}": value for name, value in row.items()}
            newest = max(row["ts"] for _, row in combination)
            yield result | {
                "epoch": EPOCHS - 1 if late else max(epochs),
                "phase": "cleanup" if late else "run-time",
                "committed_at": CLOSED if late else newest + timedelta(seconds=2),
            }

    def _write(self) -> None:
        w = self.warehouse
        w.journal.append(
            Genesis(
                warehouse_id="w",
                cluster_id="c",
                topics=[],
                query=load_query("symbol").fingerprint,
                session=DAY,
                start={stream: [0] for stream in STREAMS},
                start_rule="earliest",
                inputs=3,
                groups=[(Prefix(0, 0), 0)],
                written_at=CLOSED.isoformat(),
            )
        )
        w.journal.append(Claim(n=1, term=1, driver="d", written_at=CLOSED.isoformat()))
        cuts: list[Cut] = []
        for epoch in range(EPOCHS):
            files = [*self._files(epoch)]
            mine = [
                Cut(session=DAY, operator=0, range=Prefix(DEPTH, group), epoch=epoch)
                for group in sorted({group_of(symbol) for symbol in SYMBOLS})
            ]
            cuts += mine
            w.journal.append(self._entry(epoch, files, mine, cuts))
            for table in sorted({file.table for file in files}):
                w.apply(table, epoch, [file for file in files if file.table == table])
        late = self._results(cleanup_name(DAY, 0, "aaaaaaaaaaaa", 0), "cleanup", EPOCHS - 1)
        w.apply_cleanup(DAY, {0: late})
        counts = {phase: self.count(phase) for phase in ("run-time", "cleanup")}
        event = {"run_time": counts["run-time"], "cleanup": counts["cleanup"]}
        w.sessions.append(SessionEvent(session=DAY, event="cleaned", **event))
        w.sessions.append(
            SessionEvent(
                session=DAY,
                event="verified",
                expected=len(self.results),
                missing=0,
                doubled=0,
                complete=True,
                **event,
            )
        )

    def count(self, phase: str) -> int:
        return sum(row["phase"] == phase for row in self.results)

    def _files(self, epoch: int) -> Iterator[FileRecord]:
        yield from self._results(data_name(epoch, "aaaaaaaaaaaa", 0, 0), "run-time", epoch)
        spilled = write_spill(
            self.warehouse.folder("spill"),
            data_name(epoch, "aaaaaaaaaaaa", 0, 1),
            SPEC,
            DAY,
            epoch,
            [[self._spilled(input_, epoch)] for input_ in range(3)],
        )
        assert spilled is not None
        yield spilled
        bad = [
            {
                "topic": "stock",
                "partition": 0,
                "offset": 1000 + len(QUARANTINED) * epoch + number,
                "reason": reason,
                "value": value,
                "kafka_timestamp": OPEN,
                "epoch": epoch,
                "written_at": OPEN,
            }
            for number, (reason, value) in enumerate(QUARANTINED.items())
        ]
        yield from self._file("quarantine", data_name(epoch, "aaaaaaaaaaaa", 0, 2), bad, DAY)
        figures = [
            {
                "epoch": epoch,
                "session_date": DAY,
                "slot": 0,
                "depth": DEPTH,
                "value": group_of(symbol),
                "bytes": 100,
                "rows": [2, 2, 2],
                "results": 8,
                "last_used_ms": 0,
                "resident": resident,
                "written_at": OPEN,
            }
            for symbol in SYMBOLS
            for resident in (False, True)
        ]
        yield from self._file("statistics", data_name(epoch, "aaaaaaaaaaaa", 0, 3), figures, None)

    def _results(self, name: str, phase: str, epoch: int) -> list[FileRecord]:
        rows = [row for row in self.results if row["phase"] == phase and row["epoch"] == epoch]
        table = pa.Table.from_pylist(rows, schema=file_schema(SPEC))
        return self._record("results", name, table, DAY)

    def _file(
        self, table: str, name: str, rows: list[dict[str, Any]], session: str | None
    ) -> list[FileRecord]:
        schema = self.warehouse.table(table).definition.file_schema
        return self._record(table, name, pa.Table.from_pylist(rows, schema=schema), session)

    def _record(
        self, table: str, name: str, rows: pa.Table, session: str | None
    ) -> list[FileRecord]:
        partition = {"session_date": session} if session else {}
        folder = self.warehouse.folder(table)
        record = write_data_file(folder, table, name, rows.schema, [rows], partition)
        assert record is not None
        return [record]

    def _spilled(self, input_: int, epoch: int) -> Rows:
        own = [row for e, row in self.rows[input_] if e == epoch]
        table = pa.Table.from_pylist(own, schema=SPEC.row_schema(input_))
        hashes = xxhash64([table["symbol"].combine_chunks()])
        order = np.argsort(hashes, kind="stable")
        return Rows(hashes[order], table.take(pa.array(order)))

    def _entry(
        self, epoch: int, files: list[FileRecord], mine: list[Cut], cuts: list[Cut]
    ) -> Epoch:
        done = epoch == EPOCHS - 1
        end = {stream: [len(SYMBOLS) * 2 * (epoch + 1)] for stream in STREAMS}
        sealed = Sealed(
            session=DAY,
            epoch=epoch,
            start={stream: [0] for stream in STREAMS},
            end=end,
            ranges=[Prefix(0, 0)],
            results=self.count("run-time"),
            spilled_rows=sum(map(len, self.rows)),
            generations=len(cuts),
        )
        return Epoch(
            n=epoch + 2,
            term=1,
            epoch=epoch,
            session=NEXT if done else DAY,
            end=end,
            manifests={0: None},
            files=files,
            cuts=mine,
            read=[],
            sealed=sealed if done else None,
            results={DAY: 8 * len(SYMBOLS)},
            slots=[],
            started_at=CLOSED.isoformat(),
            written_at=CLOSED.isoformat(),
        )


def group_of(symbol: str) -> int:
    return int(xxhash64([pa.array([symbol])])[0]) >> (64 - DEPTH)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Day]:
    """A working directory with the day at `var/warehouse`."""
    folder = tmp_path_factory.mktemp("recipes")
    return folder, Day(folder / "var" / "warehouse")


# --- running them ----------------------------------------------------------------------------


def test_the_day_is_a_day(place: tuple[Path, Day]) -> None:
    _, day = place
    assert day.warehouse.check() == []
    assert len(day.results) == len(SYMBOLS) * (2 * EPOCHS) ** 3
    assert day.count("run-time") == len(SYMBOLS) * EPOCHS * 2**3


@pytest.mark.parametrize("recipe", HERE, ids=str)
def test_recipe(
    recipe: Recipe,
    place: tuple[Path, Day],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, day = place
    monkeypatch.chdir(folder)
    if recipe.language == "python":
        exec(compile(recipe.code, f"{PAGE.name}:{recipe.line}", "exec"), {})
        assert capsys.readouterr().out.strip()
        return
    import duckdb

    [connect] = [each for each in HERE if each.tab == "DuckDB" and each.language == "python"]
    exec(compile(connect.code, PAGE.name, "exec"), {})
    answer = duckdb.sql(recipe.code)
    check(recipe, answer.columns, answer.fetchall(), day)


@pytest.mark.parametrize("recipe", IN_S3, ids=str)
def test_recipe_of_an_object_store(
    recipe: Recipe,
    place: tuple[Path, Day],
    s3: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, day = place
    name = re.sub(r"\W", "", recipe.tab)
    s3.keep(folder / "var" / "warehouse", name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    server = f"ENDPOINT '{s3.endpoint.removeprefix('http://')}', URL_STYLE 'path', USE_SSL false"
    code = recipe.code.replace("TYPE s3,", f"TYPE s3, {server},")
    code = code.replace("s3://lake/spillway", s3.root(name))
    exec(compile(code, f"{PAGE.name}:{recipe.line}", "exec"), {})
    assert str(len(day.results)) in capsys.readouterr().out


LOCK = ROOT / "tests" / "spark_s3.lock"
"""Spark's client of S3: what Spark itself would fetch, and no more."""


@pytest.mark.parametrize(
    "is_locked",
    [
        pytest.param(True, marks=pytest.mark.server, id="with locked jars"),
        pytest.param(False, marks=pytest.mark.soak, id="as it stands"),
    ],
)
def test_recipe_in_spark_of_an_object_store(
    is_locked: bool,
    place: tuple[Path, Day],
    s3: S3Server,
    spark_env: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, day = place
    s3.keep(folder / "var" / "warehouse", name := f"Spark{is_locked}")
    options = {
        "endpoint.region": "us-east-1",
        "endpoint": s3.endpoint,
        "path.style.access": "true",
    }
    given = {f"spark.hadoop.fs.s3a.{option}": value for option, value in options.items()}
    given["spark.jars.ivy"] = str(tmp_path / "ivy")
    if is_locked:
        own = jars.jar_paths("spark")
        var = var_folder() / "spark-s3"
        monkeypatch.setattr(jars, "lock_file", lambda: LOCK)
        jars.install(var)
        given["spark.jars"] = ",".join(map(str, own + jars.jar_paths("spark", var)))
        given["spark.jars.packages"] = ""
    code = SPARK_IN_S3.code.replace("local[*]", "local[1]")
    code = code.replace("s3a://lake/spillway", s3.root(name).replace("s3:", "s3a:"))
    code = code.replace("spark = spark_session", f"options |= {given!r}\nspark = spark_session", 1)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={
            **os.environ,
            **spark_env,
            "PYTHONPATH": os.pathsep.join(source_paths(str(ROOT))),
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert str(len(day.results)) in done.stdout


IN_SPARK = """
import json, sys
from pathlib import Path
from spillway.tables import log
from tests.followed import Followed

connect, queries, stream, two_numbers = json.load(sys.stdin)
names = {}
exec(connect, names)
answers = []
for query in queries:
    answer = names["spark"].sql(query)
    answers.append([answer.columns, [list(row) for row in answer.collect()]])

# The table as a stream, and two numbers, while the table grows and its files change.
results, spark = Followed(Path("var/warehouse")), names["spark"]
followed = {"streamed": [], "picked": []}
position = (-1, -1)

def follow():
    global position
    exec(stream, {})
    rows = spark.read.parquet("var/followed/rows").select("stock_offset").collect()
    followed["streamed"].append([row[0] for row in rows])
    kept = {}
    exec(two_numbers.replace("epoch, event = -1, -1", f"epoch, event = {position}"), kept)
    position = kept["position"]
    rows = kept["new"].select("stock_offset").collect()
    followed["picked"].append([row[0] for row in rows])

results.run_epoch([5, 3])
results.run_epoch([4])
follow()
results.run_epoch([2, 2])
results.compact()
results.seal()
results.clean(0, 6)
results.clean(0, 3)
results.finish(0)
results.checkpoint()
results.run_epoch([1])
results.compact()
follow()
results.vacuum()
follow()
# Away for so long that the log does not reach back.
log.KEEP_ENTRIES, log.KEEP_S = 0, -10.0
for _ in range(3):
    results.run_epoch([1])
    results.checkpoint()
try:
    exec(stream, {})
except Exception as error:
    followed["late"] = str(error)
exec(two_numbers.replace("epoch, event = -1, -1", f"epoch, event = {position}"), kept := {})
followed["picked"].append([row[0] for row in kept["new"].select("stock_offset").collect()])
followed["given"] = results.given
spark.stop()
print(json.dumps([answers, followed], default=str), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def in_spark(place: tuple[Path, Day], spark_env: dict[str, str]) -> Any:
    """What the recipes in Spark give, of both pages."""
    folder, _ = place
    (folder / "followed").mkdir()
    [connect] = [each for each in SPARK if each.language == "python"]
    queries = [each.code for each in SPARK if each.language == "sql"]
    stream, two_numbers = FOLLOWERS["Spark, continuously"], FOLLOWERS["Spark, periodically"]
    there = connect.code.replace("var/warehouse", str(folder / "var" / "warehouse"))
    codes = [there, queries, stream, two_numbers]
    done = subprocess.run(
        [sys.executable, "-c", IN_SPARK],
        input=json.dumps(codes).replace("local[*]", "local[1]"),
        cwd=folder / "followed",  # the JVM's, too
        env={
            **os.environ,
            **spark_env,
            "PYTHONPATH": os.pathsep.join(source_paths(str(ROOT))),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stderr.strip().splitlines()[-1])


@pytest.mark.server
def test_recipes_in_spark_sql(place: tuple[Path, Day], in_spark: Any) -> None:
    queries = [each for each in SPARK if each.language == "sql"]
    for recipe, (columns, rows) in zip(queries, in_spark[0], strict=True):
        check(recipe, columns, rows, place[1])


@pytest.mark.server
def test_spark_follows_the_table(in_spark: Any) -> None:
    """Each row once, over run time, cleanup, compaction and vacuum; a stream that was away for too
    long says so, and two numbers go on."""
    followed = in_spark[1]
    given, late = Counter(followed["given"]), followed["late"]
    missed = Counter(followed["given"][-3:])
    assert [Counter(rows) for rows in followed["streamed"][-2:]] == [given - missed] * 2
    assert len(followed["streamed"][0]) == 12
    assert [len(rows) for rows in followed["picked"]] == [12, 14, 0, 3]
    assert Counter(itertools.chain.from_iterable(followed["picked"])) == given
    assert TOO_LATE in late
    assert TOO_LATE in FOLLOWING.read_text()


TOO_LATE = "DELTA_MISSING_FILES_UNEXPECTED_VERSION"
"""How Spark says that the log does not reach back."""


# --- a loop of one's own ---------------------------------------------------------------------


class Dying(sqlite3.Connection):
    """A database whose process dies at one of its writes."""

    dies_at = 0
    writes = 0

    def _write(self) -> None:
        self.writes += 1
        if self.writes == self.dies_at:
            raise KeyboardInterrupt

    def execute(self, *given: Any) -> Any:
        """As a connection does."""
        self._write()
        return super().execute(*given)

    def executemany(self, *given: Any) -> Any:
        """As a connection does."""
        self._write()
        return super().executemany(*given)


def test_a_loop_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row once, whatever is done to the table, and wherever the loop is killed."""
    monkeypatch.chdir(tmp_path)
    results = Followed(tmp_path / "var" / "warehouse")
    results.run_epoch([3, 2])
    names: dict[str, Any] = {}
    exec(compile(FOLLOWERS["A loop of your own"], FOLLOWING.name, "exec"), names)
    assert capsys.readouterr().out == "5 new rows\n"
    names["sink"].close()
    changes: list[Callable[[], None]] = [
        lambda: results.run_epoch([2]),
        results.compact,
        results.seal,
        lambda: results.clean(0, 4),
        lambda: results.run_epoch([1, 1]),
        lambda: results.clean(0, 2),
        lambda: results.finish(0),
        results.compact,
        results.checkpoint,
        results.vacuum,
        lambda: results.run_epoch([3]),
        lambda: results.finish(0),
    ]
    for change in changes:
        change()
        for dies_at in (*range(3, 9), 0):
            sink = sqlite3.connect("followed.db", factory=Dying)
            sink.dies_at = dies_at
            with suppress(KeyboardInterrupt):
                names["follow"]("var/warehouse", sink)
            sink.close()
        with closing(sqlite3.connect("followed.db")) as sink:
            found = sink.execute("SELECT stock_offset FROM results").fetchall()
        assert Counter(number for (number,) in found) == Counter(results.given)


def check(recipe: Recipe, columns: list[str], rows: list[Any], day: Day) -> None:
    """Something came, and where it is known by other means, the right thing."""
    assert rows, f"{recipe} gives nothing"
    got = [dict(zip(columns, row, strict=True)) for row in rows]
    each = len(day.results) // len(SYMBOLS)
    if "price" in columns and "results" in columns:
        assert {row["symbol"]: row["results"] for row in got} == dict.fromkeys(SYMBOLS, each)
    if recipe.heading == "The day so far" and "phase" in columns:
        wanted = {phase: day.count(phase) for phase in ("run-time", "cleanup")}
        assert {row["phase"]: row["results"] for row in got} == wanted
    if recipe.heading == "Which partition group is a row in?":
        if "symbol" in columns:
            assert {r["symbol"]: r["group_number"] for r in got} == {
                s: group_of(s) for s in SYMBOLS
            }
        else:
            assert sum(row["results"] for row in got) == each
    if recipe.heading == "Which generations were spilled?" and "bytes" in columns:
        assert len(got) == EPOCHS * len(SYMBOLS)
        assert {row["row_count"] for row in got} == {6}
    if recipe.heading == "What is in the rows that left memory?":
        for line in got:
            prices = [row["price"] for _, row in day.rows[0] if row["symbol"] == line["symbol"]]
            wanted_line = (len(prices), min(prices), max(prices))
            assert (line["row_count"], line["lowest"], line["highest"]) == wanted_line
        assert {line["symbol"] for line in got} == set(SYMBOLS)
    if "generations" in columns:
        assert {r["group_number"]: r["generations"] for r in got} == {
            group_of(s): EPOCHS for s in SYMBOLS
        }
    if "example" in columns:
        assert {row["reason"]: (row["row_count"], row["example"]) for row in got} == {
            reason: (EPOCHS, None if value is None else value.decode(errors="replace"))
            for reason, value in QUARANTINED.items()
        }
    if recipe.heading == "How late are results?":
        assert [float(value) for value in got[0]["p50_p99_s"]] == [2.0, 2.0]
