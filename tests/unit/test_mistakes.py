"""Mistakes that people make: each has its exit code, and says what happened and what to do.

What needs a broker or Spark is in `tests/integration` (`test_doctor`, `test_produce`); mended rows
and recordings have tests of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from spillway.cli import main
from spillway.commands import given
from spillway.plain import plain
from spillway.stream.progress import in_short
from spillway.tables import SessionEvent
from spillway_schemas.query import load_query
from tests.commands import command_of
from tests.protocol_entries import claim, ends, epoch, genesis, seal
from tests.report_journal import DAY, NEXT, fill_journal, make_day, open_warehouse
from tests.troubles import stream_tells

QUERY = """\
[streams.a]
fields = { symbol = "int", price = "double" }
[streams.b]
topic = "b"
fields = { symbol = "string", size = "int" }
[join]
inputs = ["a", "b"]
on = ["symbol"]
"""
GOOD = QUERY.replace('symbol = "int"', 'symbol = "string"')


@dataclass(frozen=True)
class Mistake:
    """What somebody does, and what the answer must hold."""

    name: str
    arguments: tuple[str, ...]
    says: str
    code: int = 2
    files: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def settings_file(name: str, text: str, says: str) -> Mistake:
    files = {"s.toml": text}
    return Mistake(name, ("--config", "s.toml", "config", "show"), says, files=files)


def query_file(name: str, text: str, says: str) -> Mistake:
    return Mistake(name, ("--set", "query=q.toml", "topics"), says, files={"q.toml": text})


NOWHERE = ("--set", "kafka.bootstrap_servers=127.0.0.1:1")
START_ONE = (
    "nothing listens at 127.0.0.1:1: start the embedded broker with 'spillway kafka start', or set "
    "kafka.bootstrap_servers to the address of yours"
)

MISTAKES = [
    # --- settings -------------------------------------------------------------------------------
    Mistake(
        "a budget that is no size",
        ("--set", "state.budget_bytes=lots", "config", "show"),
        "spillway: --set state.budget_bytes: a number of bytes is needed, or one with its unit "
        "such as 512MiB or 2GiB (got 'lots')",
    ),
    Mistake(
        "a truth that is none",
        ("--set", "warehouse.fsync=maybe", "config", "show"),
        "spillway: --set warehouse.fsync: true or false is needed (got 'maybe')",
    ),
    Mistake(
        "a number that is none, in a variable",
        ("config", "show"),
        "spillway: SPILLWAY_STATE__SLOTS: a whole number is needed (got 'two')",
        env={"SPILLWAY_STATE__SLOTS": "two"},
    ),
    Mistake(
        "a word that is not among those that are allowed",
        ("--set", "session.boundary=bell", "config", "show"),
        "spillway: --set session.boundary: must be 'command' or 'calendar' (got 'bell')",
    ),
    Mistake(
        "a setting that does not exist",
        ("--set", "foo=1", "config", "show"),
        "there is no setting foo; 'spillway config show' lists all",
    ),
    Mistake(
        "a setting with a typing error",
        ("--set", "state.slotz=1", "config", "show"),
        "there is no setting state.slotz; did you mean state.slots?",
    ),
    Mistake(
        "a number or a word, and neither",
        ("--set", "maintenance.archive_journal_days=soon", "config", "show"),
        "spillway: --set maintenance.archive_journal_days: a whole number is needed, or must be "
        "'never' (got 'soon')",
    ),
    Mistake(
        "no query",
        ("--set", "query=", "explain"),
        "spillway: --set query: it is empty (got '')",
    ),
    Mistake(
        "a table by a flag",
        ("--set", 'kafka.options={"security.protocol": "SSL"}', "config", "show"),
        "spillway: --set kafka.options: no flag gives a table: write it into the settings file "
        "below [kafka.options], or as a JSON object into SPILLWAY_KAFKA__OPTIONS",
    ),
    Mistake(
        "an option of a table by a flag",
        ("--set", "warehouse.options.aws_region=x", "config", "show"),
        "--set warehouse.options.aws_region: no flag gives a table: write it into the settings "
        "file below [warehouse.options], or as a JSON object into SPILLWAY_WAREHOUSE__OPTIONS",
    ),
    Mistake(
        "a list in place of a table, in a variable",
        ("config", "show"),
        "SPILLWAY_KAFKA__OPTIONS: a table is needed: names with a value each; in a variable it is "
        "a JSON object",
        env={"SPILLWAY_KAFKA__OPTIONS": '["SSL"]'},
    ),
    settings_file(
        "a section that is a text",
        'kafka = "broker:9092"\n',
        "s.toml:1: kafka: it is a section: write its settings below a line with its name",
    ),
    Mistake(
        "a master that Spark does not have",
        ("--set", "spark.master=loca[2]", "config", "show"),
        "--set spark.master: one of local[*], local[cores], local-cluster[n,cores,MiB], "
        "spark://host:port, yarn, k8s://... (got 'loca[2]')",
    ),
    Mistake(
        "an object store that does not exist",
        ("--set", "warehouse.root=s4://lake/w", "config", "show"),
        "--set warehouse.root: write a folder, or a place in an object store that begins with "
        "s3://, gs://, abfss:// (got 's4://lake/w')",
    ),
    Mistake(
        "an object store with one slash",
        ("--set", "warehouse.root=s3:/lake", "config", "show"),
        "--set warehouse.root: 's3:/lake' does not name a place in an object store: write "
        "s3://bucket/folder, gs://bucket/folder or abfss:// with the container, an @, and "
        "account.dfs.core.windows.net/folder; names have letters, digits and . _ = -",
    ),
    Mistake(
        "state in an object store",
        ("--set", "state.root=s3://lake/w", "config", "show"),
        "--set state.root: a local path is needed; only warehouse.root may be in an object store",
    ),
    Mistake(
        "a flag of nothing",
        ("--set", "", "stream"),
        "'': write --set section.name=value",
    ),
    Mistake(
        "a setting without a name",
        ("--set", "=4", "stream"),
        "a name is missing: write --set section.name=value",
    ),
    Mistake(
        "a setting without a value",
        ("--set", "state.slots", "stream"),
        "'state.slots': write --set section.name=value",
    ),
    Mistake(
        "a variable with one underscore",
        ("config", "show"),
        "SPILLWAY_STATE_SLOTS: not a setting; two underscores are needed: SPILLWAY_STATE__SLOTS",
        env={"SPILLWAY_STATE_SLOTS": "3"},
    ),
    Mistake(
        "a variable without its section",
        ("config", "show"),
        "SPILLWAY_ROOT: not a setting; did you mean SPILLWAY_STATE__ROOT or "
        "SPILLWAY_WAREHOUSE__ROOT?",
        env={"SPILLWAY_ROOT": "/data"},
    ),
    Mistake(
        "a variable with a typing error",
        ("config", "show"),
        "SPILLWAY_QUERRY: not a setting; did you mean SPILLWAY_QUERY?",
        env={"SPILLWAY_QUERRY": "symbol"},
    ),
    Mistake(
        "a settings file that is not there",
        ("--config", "no.toml", "config", "show"),
        "spillway: no.toml: there is no such file",
    ),
    settings_file(
        "a quote that is not closed",
        '[state]\nslots = "3\n',
        "spillway: s.toml:2: not valid TOML: a quote is not closed on its line",
    ),
    settings_file(
        "text without quotes",
        "query = symbol\n",
        "s.toml:1: not valid TOML: the value is missing or not valid TOML; text is written in "
        "quotes",
    ),
    settings_file(
        "a size without quotes",
        "[state]\nbudget_bytes = 1GiB\n",
        "s.toml:2: not valid TOML: something follows the value; text is written in quotes, e.g. "
        'root = "var/x", size = "512MiB"',
    ),
    settings_file(
        "a setting twice",
        "[state]\nslots = 1\nslots = 2\n",
        "s.toml:3: not valid TOML: this name has a value already",
    ),
    settings_file(
        "a section twice",
        "[state]\n[spill]\n[state]\n",
        "s.toml:3: not valid TOML: [state] is there twice; write its lines together",
    ),
    settings_file("no bracket", "[state\n", "s.toml:1: not valid TOML: the ] of a [section]"),
    settings_file(
        "another language", "state: 1\n", "s.toml:1: not valid TOML: a line is name = value or ["
    ),
    settings_file(
        "a path of Windows",
        '[warehouse]\nroot = "C:\\data"\n',
        "s.toml:2: not valid TOML: in double quotes a backslash is written twice",
    ),
    # --- query ----------------------------------------------------------------------------------
    query_file(
        "keys of different types",
        QUERY,
        "q.toml:8: key symbol is not of one type: a int, b string; give it columns and cast "
        'there, e.g. a = "try_cast(symbol as string)"',
    ),
    query_file(
        "a type that does not exist",
        QUERY.replace('"int"', '"integer"'),
        "q.toml:2: streams.a.fields.symbol: 'integer' is no type; allowed: string, int, double",
    ),
    query_file(
        "a type that does not exist, in a table of its own",
        GOOD.replace(
            'fields = { symbol = "string", size = "int" }',
            '[streams.b.fields]\nsymbol = "string"\nsize = "text"',
        ),
        "q.toml:7: streams.b.fields.size: 'text' is no type; allowed: string, int, double",
    ),
    query_file(
        "a decimal that does not exist",
        QUERY.replace('"double"', '"decimal(40,2)"'),
        "q.toml:2: streams.a.fields.price: 'decimal(40,2)': decimal(p,s) needs 1 <= p <= 38",
    ),
    query_file(
        "a field that is no name",
        QUERY.replace("price", '"the price"'),
        "q.toml:2: streams.a.fields.the price: 'the price' is no field name: letters, digits",
    ),
    query_file(
        "no field",
        QUERY.replace('{ symbol = "int", price = "double" }', "{}"),
        "q.toml:2: streams.a.fields: it is empty; write for example symbol = 'string'",
    ),
    query_file(
        "a schema that is not shipped",
        QUERY.replace('fields = { symbol = "int", price = "double" }', 'schema = "stocks"'),
        "q.toml:2: streams.a.schema: there is no schema 'stocks'; there are: ",
    ),
    query_file(
        "a result twice",
        GOOD + '[results]\ncolumns = ["a.price", "b.size", "a.price"]\n',
        "q.toml:10: 'a.price' is there twice; name each column once",
    ),
    query_file(
        "a key that no stream has",
        GOOD.replace('on = ["symbol"]', 'on = ["sym"]'),
        "q.toml:8: key sym of a: there is no column sym; did you mean symbol?",
    ),
    query_file(
        "a field twice",
        GOOD.replace("{ symbol", '{ symbol = "string", symbol', 1),
        "q.toml:2: not valid TOML: Duplicate inline table key 'symbol'",
    ),
    query_file(
        "a key twice",
        GOOD.replace('on = ["symbol"]', 'on = ["symbol", "symbol"]'),
        "q.toml:8: two keys of the same name: symbol",
    ),
    query_file(
        "a stream without fields",
        GOOD.replace('fields = { symbol = "string", size = "int" }\n', ""),
        "q.toml:3: streams.b: give either schema (a shipped contract) or fields (your own)",
    ),
    query_file(
        "a stream that is not there",
        GOOD.replace('["a", "b"]', '["a", "c"]'),
        "q.toml:7: there is no stream 'c'; there are: a, b",
    ),
    query_file(
        "a join of one",
        GOOD.replace('["a", "b"]', '["a"]'),
        "q.toml:7: join.inputs: at least 2 are needed",
    ),
    *(
        query_file(
            f"a filter that is no SQL: {filter_}",
            GOOD.replace('topic = "b"', f'topic = "b"\nfilter = "{filter_}"'),
            f"q.toml:5: filter of b: not valid SQL{says} ",
        )
        for filter_, says in (
            ("size >", ": it ends too early"),
            ("size = = 1", " at character 8: unexpected ="),
            ("size >\\n\\n = 1", " at line 3, character 2: unexpected ="),
        )
    ),
    query_file(
        "a window that is a number",
        GOOD + "window = 600\n",
        'q.toml:9: join.window: write a length of time: window = "10 minutes"',
    ),
    query_file(
        "a window without a time",
        GOOD + 'window = "1 hour"\n',
        "q.toml:1: join has a window, or a join above it: say which field of a it goes by, "
        "time = ...; give a a field of type timestamp",
    ),
    query_file(
        "a time that may be null, and no other",
        GOOD.replace('topic = "b"', 'topic = "b"\ntime = "at"').replace(
            'size = "int"', 'at = "timestamp?"'
        ),
        "q.toml:5: at is timestamp?; a time is a timestamp that is never null; give b a field of "
        "type timestamp",
    ),
    query_file(
        "a topic that no Kafka would have",
        GOOD.replace('topic = "b"', 'topic = "b c"'),
        "q.toml:4: streams.b.topic: 'b c' is no name of a topic: letters, digits, '.', '_' and",
    ),
    query_file(
        "one topic for two streams",
        GOOD.replace('topic = "b"', 'topic = "a"'),
        "q.toml:4: topic a is stream a already: take another, or read that stream again as",
    ),
    query_file(
        "a word that a query does not have",
        GOOD.replace("topic", "topik"),
        "q.toml:4: streams.b.topik: there is no such key; did you mean topic? allowed: topic,",
    ),
    query_file(
        "a result without its stream",
        GOOD + '[results]\ncolumns = ["size"]\n',
        "q.toml:10: there is no 'size'; write b.size",
    ),
    query_file(
        "a key as a result",
        GOOD + '[results]\ncolumns = ["symbol"]\n',
        "q.toml:10: symbol is a key, and keys are always in the results: leave it out",
    ),
    query_file(
        "a result that no stream has",
        GOOD + '[results]\ncolumns = ["a.prize"]\n',
        "q.toml:10: there is no 'a.prize'; there are: a.symbol, a.price, b.symbol, b.size",
    ),
    query_file("an empty file", "", "q.toml: streams: missing"),
    Mistake(
        "a shipped query with a typing error",
        ("--set", "query=symbl", "topics"),
        "there is no shipped query 'symbl'; did you mean symbol? Shipped: bushy, five_way, "
        "quoted_trades, symbol, symbol_minute",
    ),
    # --- commands -------------------------------------------------------------------------------
    Mistake("a command with a typing error", ("stram",), "No such command 'stram'. Did you mean"),
    Mistake(
        "an option that does not exist", ("--nonsense", "stream"), "No such option: --nonsense"
    ),
    Mistake(
        "a setting after the command",
        ("kafka", "status", "--set", "state.slots=4"),
        "No such option: --set here. Write it right after spillway, before the command",
    ),
    Mistake(
        "a settings file after the command",
        ("status", "--config", "x.toml"),
        "before the command: spillway --config ... status",
    ),
    Mistake("an option left out", ("seal",), "Missing option '--session'"),
    Mistake(
        "a scenario that does not exist",
        ("produce", "nosuch"),
        "spillway: no scenario 'nosuch'; shipped are bench, bench-five-way, bench-window, bushy,",
    ),
    Mistake("nothing to produce", ("produce",), "name a scenario, or a recording with --replay"),
    Mistake(
        "two things to produce",
        ("produce", "demo", "--replay", "r.jsonl"),
        "a scenario and --replay at once: leave one of them out",
    ),
    Mistake(
        "a topic for a scenario",
        ("produce", "demo", "--topic", "stock"),
        "--topic goes with --replay: a scenario names its topics",
    ),
    Mistake(
        "processes for a recording",
        ("produce", "--replay", "r.jsonl", "--processes", "2"),
        "--processes goes with a scenario: one process sends a recording",
    ),
    Mistake(
        "a folder in place of a recording",
        ("produce", "--replay", "."),
        "spillway: .: it is a folder; name a file",
    ),
    Mistake(
        "a folder of DAGs that is not there",
        ("airflow", "dags", "dags"),
        "spillway: there is no folder dags: name Airflow's dags folder",
    ),
    Mistake(
        "jars into a file",
        ("setup",),
        "r.jsonl/jars cannot be written: Not a directory. Mend that, or set SPILLWAY_VAR to "
        "another folder",
        code=3,
        files={"r.jsonl": ""},
        env={"SPILLWAY_VAR": "r.jsonl"},
    ),
    Mistake(
        "a recording that is not there",
        ("produce", "--replay", "gone.jsonl"),
        "spillway: gone.jsonl: there is no such file",
    ),
    Mistake(
        "a recording for a topic that Kafka refuses",
        (*NOWHERE, "produce", "--replay", "r.jsonl", "--topic", "no way"),
        "spillway: r.jsonl: 'no way' is no name of a topic: letters, digits, '.', '_' and '-', 249 "
        "at most. Name one with --topic",
        files={"r.jsonl": '{"symbol": "A"}\n'},
    ),
    Mistake(
        "a recording whose name is no topic's",
        (*NOWHERE, "produce", "--replay", "...jsonl"),
        "spillway: ...jsonl: '..' is no name of a topic",
        files={"...jsonl": '{"symbol": "A"}\n'},
    ),
    Mistake(
        "nothing to look at",
        ("status",),
        "there is no warehouse",
        code=4,
    ),
    # --- surroundings ---------------------------------------------------------------------------
    Mistake("no broker, to produce", (*NOWHERE, "produce", "sample-day"), START_ONE, code=3),
    Mistake("no broker, for its topics", (*NOWHERE, "topics"), START_ONE, code=3),
    Mistake(
        "an address that is no address",
        ("--set", "kafka.bootstrap_servers=localhost", "topics"),
        "spillway: --set kafka.bootstrap_servers: 'localhost' is not host:port",
    ),
    Mistake(
        "an embedded broker at another host",
        ("--set", "kafka.bootstrap_servers=broker.invalid:9092", "kafka", "start"),
        "kafka.bootstrap_servers is broker.invalid:9092: the embedded broker is on 127.0.0.1 only",
    ),
    Mistake(
        "a speed below nothing",
        ("produce", "sample-day", "--speed", "-1"),
        "Invalid value for '--speed': 0 or more is needed (got '-1')",
    ),
    Mistake(
        "a count that is no number",
        ("maintain", "--keep-spilled-days", "week"),
        "Invalid value for '--keep-spilled-days': a whole number is needed (got 'week')",
    ),
    Mistake(
        "a speed that is no number",
        ("produce", "sample-day", "--speed", "fast"),
        "Invalid value for '--speed': a number is needed (got 'fast')",
    ),
    Mistake(
        "a producer without a process",
        ("produce", "sample-day", "--processes", "0"),
        "Invalid value for '--processes': 1 or more is needed (got '0')",
    ),
    Mistake(
        "no Java, for a broker",
        ("kafka", "start"),
        "no java in JAVA_HOME (/nonexistent): install a Java 17 runtime and set JAVA_HOME to it",
        code=3,
        env={"JAVA_HOME": "/nonexistent"},
    ),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, with a variable folder of its own."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith("SPILLWAY_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SPILLWAY_VAR", str(tmp_path / "var"))
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    """The exit code, and what was said: on one line, the frame of a usage error left out."""
    with pytest.raises(SystemExit) as it:
        main(arguments)
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    assert "\x1b" not in said.out + said.err
    return it.value.code, re.sub(r"[\s│╭╮╰╯─]+", " ", said.err + said.out)


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_mistake_is_told_with_its_remedy(
    mistake: Mistake,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in mistake.env.items():
        monkeypatch.setenv(name, value)
    for name, text in mistake.files.items():
        (here / name).write_text(text)
    code, said = answer(capsys, *mistake.arguments)
    assert (code, mistake.says in said.replace(f"{here}/", "")) == (mistake.code, True), said


def test_a_value_is_repeated_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, said = answer(capsys, "--set", "metrics.listen=9464", "config", "show")
    assert said.count("'9464'") == 1, said


def test_jars_that_are_not_there_are_told_with_the_folder(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = answer(capsys, "kafka", "start")
    assert code == 3
    assert f"jars are not in {here}/var/jars/broker (first: " in said
    assert "run 'spillway setup' with SPILLWAY_VAR set as it is now" in said


def test_spark_is_not_started_without_java_or_jars(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spillway.jars import JarError, JavaError
    from spillway.stream.session import spark_session

    with pytest.raises(JarError, match=f"jars are not in {here}/var/jars/spark .*'spillway setup'"):
        spark_session("local[1]", "test")
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    with pytest.raises(JavaError, match="install a Java 17 runtime and set JAVA_HOME to it"):
        spark_session("local[1]", "test")


def test_an_address_elsewhere_is_not_answered_with_the_embedded_broker(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = "--set=kafka.bootstrap_servers=broker.invalid:9092"
    code, said = answer(capsys, address, "topics")
    assert code == 3
    assert "this machine knows no host broker.invalid: check the address in kafka.boot" in said
    assert "kafka start" not in said


# --- a day at the wrong time ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A warehouse whose first day is sealed and not cleaned; the next one is open."""
    root = str(tmp_path_factory.mktemp("sealed") / "w")
    made = make_day(12, seal_after=6)
    fill_journal(open_warehouse(root), made.entries)
    return root


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("command", ["cleanup", "verify"])
def test_a_day_whose_seal_is_pending_is_told(
    command: str, read: bool, tmp_path: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody is to seal it again, whether the stream has read the seal or not."""
    end = ends(9, 9, 9)
    begun = genesis().model_copy(update={"query": load_query("symbol").fingerprint})
    entries = [begun, claim(1, 1), epoch(2, 0, ends(4, 4, 4), seal=seal(end) if read else None)]
    written = [each.model_copy(update={"written_at": f"{DAY}T21:00:00Z"}) for each in entries]
    warehouse = open_warehouse(str(tmp_path / "w"))
    fill_journal(warehouse, written)
    if not read:
        warehouse.commands.append(command_of("seal", "s", session=DAY, offsets=end))
    with pytest.raises(SystemExit) as it:
        main(["--set", f"warehouse.root={tmp_path / 'w'}", command, "--session", DAY])
    assert it.value.code == 3
    assert (
        f"session {DAY} is being sealed, but not all of its input has been read yet: let `spillway "
        f"stream --until-sealed {DAY}` reach its end first" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("cleanup", "--session", NEXT), 3, f"Run `spillway seal --session {NEXT}`, and let"),
        (
            ("cleanup", "--session", "2025-01-06"),
            3,
            f"session 2025-01-06 is not in the journal (sealed: {DAY}; open: {NEXT})",
        ),
        (
            ("--set", "query=symbol_minute", "cleanup", "--session", DAY),
            2,
            "holds another query's state and results",
        ),
        (("verify", "--session", NEXT), 3, "is not sealed: more rows may come. Run `spillway seal"),
        (
            ("verify", "--session", "2025-01-06"),
            3,
            f"session 2025-01-06 is not in the journal (sealed: {DAY}; open: {NEXT})",
        ),
        (("verify", "--session", DAY), 3, f"run 'spillway cleanup --session {DAY}', then verify"),
        (
            ("--set", "query=symbol_minute", "verify", "--session", DAY),
            2,
            "Name the query file that its stream was started with",
        ),
        (("seal", "--session", "2025-01-06"), 3, f"`spillway seal --session {NEXT}` ends it"),
        (
            ("seal", "--session", NEXT, "--at", "noon"),
            2,
            "--at 'noon': write now, read, close, or a time",
        ),
        (("seal", "--session", DAY), 0, f"{DAY} is sealed already"),
        (("seal", "--session", NEXT), 3, START_ONE),
        (("status", "--report", "."), 2, "--report: . cannot be written: it is a folder"),
        (
            ("status", "--report", "none/day.html"),
            2,
            "--report: none/day.html cannot be written: No such file or directory",
        ),
        (("quarantine", "list", "--session", DAY), 0, f"No row is quarantined of session {DAY}."),
        (("rebalance", "--move", "x"), 2, "'x': write, for example, --move 9/17:1"),
        (("rebalance", "--spill", "0:lots"), 2, "'0:lots': 'lots' is not a size such as 100MiB"),
        (
            ("rebalance", "--spill", "0:9999999TiB"),
            2,
            "'9999999TiB' is more than any slot can hold",
        ),
        (("rebalance", "--split", "9999999999/1"), 2, "is not a group: write DEPTH/VALUE"),
        (
            ("rebalance", "--split", "65/1"),
            2,
            "'65/1' is not a group: the first number is at most 64",
        ),
        (("rebalance", "--split", "9" * 5000 + "/1"), 2, "is not a group: write DEPTH/VALUE"),
        (("rebalance", "--split", "９/1"), 2, "is not a group: write DEPTH/VALUE"),
        (("rebalance", "--move", "4/1:" + "9" * 5000), 2, "is not a slot number"),
        (("rebalance", "--split", "4/1", "--reason", "\udcff"), 2, "'\\udcff' is not UTF-8"),
        (("rebalance", "--slots", "0"), 2, "slots must be between 1 and the 16 groups, got 0"),
    ],
)
def test_a_day_at_the_wrong_time(
    arguments: tuple[str, ...],
    code: int,
    says: str,
    sealed: str,
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, said = answer(capsys, *NOWHERE, "--set", f"warehouse.root={sealed}", *arguments)
    assert (found, says in said) == (code, True), said


def test_a_proof_does_not_wait_for_a_broker_that_is_away(
    tmp_path: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its client alone would try for half a minute."""
    root = str(tmp_path / "cleaned")
    warehouse = open_warehouse(root)
    fill_journal(warehouse, make_day(12, seal_after=6).entries)
    warehouse.sessions.append(SessionEvent(session=DAY, event="cleaned"))
    given = ("--set", f"warehouse.root={root}")
    code, said = answer(capsys, *NOWHERE, *given, "verify", "--session", DAY)
    assert (code, "nothing listens at 127.0.0.1:1: " in said) == (3, True), said


# --- escape codes --------------------------------------------------------------------------------

DELTA = (
    "Generic LocalFileSystem error\n      \x1b[31m↳\x1b[0m Unable to open file /w/1.json#1\n"
    "       \x1b[31m↳\x1b[0m Operation not permitted (os error 1)\n"
)
"""As delta-rs words it, whatever it writes to."""


def test_escape_codes_of_a_library_do_not_get_through(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError(DELTA)

    monkeypatch.setattr(given, "warehouse", fails)
    code, said = answer(capsys, "status", "--groups", "3")
    assert code == 3
    assert (
        "Generic LocalFileSystem error: Unable to open file /w/1.json#1: Operation not permitted"
    ) in said


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (DELTA.splitlines()[0], "Generic LocalFileSystem error"),
        ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b", "ab"),
        ("two\n  lines\tand a\x07bell\x9b", "two\n  lines\tand a\\x07bell\\x9b"),
        ("\x1b[1;38;5;9mred\x1b[m\x1b(0", "red\\x1b(0"),
    ],
)
def test_plain_text(text: str, wanted: str) -> None:
    assert plain(text) == wanted


@pytest.mark.parametrize(
    "arguments",
    [
        ("config", "show"),
        ("config", "show", "--json"),
        ("--config", "two.toml", "status", "--json"),
    ],
    ids=["a table", "much JSON", "little JSON"],
)
def test_output_that_nobody_reads_says_nothing_of_the_day(
    arguments: tuple[str, ...], here: Path
) -> None:
    """`spillway verify ... | head -1` must not end with 1: that is a day that is not complete."""
    (here / "two.toml").write_text("[queries.a]\nquery = 'symbol'\n[queries.b]\nquery = 'symbol'\n")
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as unread:
        done = subprocess.run(
            [sys.executable, "-c", "from spillway.cli import main; main()", *arguments],
            stdout=unread,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": ""},
        )
    assert done.returncode == 3, done.stderr
    assert done.stderr == "spillway: nobody reads the output any more (broken pipe)\n"


def test_no_escape_codes_when_stderr_is_no_terminal(here: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from spillway.cli import main; main()", "--set", "foo=1", "status"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    assert done.returncode == 2
    assert done.stderr.startswith("spillway: --set foo: there is no setting foo")
    assert "\x1b" not in done.stderr + done.stdout


def test_the_long_names_of_state_files_are_cut_in_the_middle() -> None:
    name = "0f3a9c11aa22bb33cc44dd55ee66ff77-12-a1b2c3d4-0badc0de.manifest"
    told = f"slot 0 has lost its state (manifest {name} is not in file:///dev/shm/spillway/slot-0)"
    assert in_short(told) == told.replace(name, "0f3a9c11...-0badc0de.manifest")
    assert in_short("state.toml, results-2026-01-05.parquet") == (
        "state.toml, results-2026-01-05.parquet"
    )


def test_the_stream_tells_its_troubles_with_short_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "0f3a9c11aa22bb33cc44dd55ee66ff77-12-a1b2c3d4-0badc0de.manifest"
    stream_tells(monkeypatch, f"slot 0 has lost {name}")
    with pytest.raises(SystemExit):
        main(["stream"])
    assert "slot 0 has lost 0f3a9c11...-0badc0de.manifest" in capsys.readouterr().err
