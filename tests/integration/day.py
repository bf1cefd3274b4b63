"""A trading day on the real parts, for tests: own producer, own brute force, the real commands.

Nothing here uses the engine: messages are made and joined by plain Python, and what the system
gave is read from its Delta table. `Day.check()` compares whole multisets of coordinates and the
values that belong to them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.integration.failpoints import THEN
from tests.packages import source_paths
from tests.s3_server import S3Server

STREAMS = ("stock", "volume", "review")
LATE = "late.jsonl"
"""The rows of a correction, in a day's folder."""
ROOT = Path(__file__).resolve().parents[2]


def message(stream: str, symbol: str, number: int) -> dict[str, Any]:
    """A valid message whose values tell it from every other."""
    second = number % 3600
    ts = f"2026-01-05T{9 + second // 1800:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"
    body: dict[str, Any] = {"symbol": symbol, "ts": ts}
    if stream == "stock":
        return {**body, "price": number + 0.25}
    if stream == "volume":
        return {**body, "shares": number}
    return {**body, "reviewer": f"r{number}", "rating": 1 + number % 5}


def messages(seed: int, rows: int, keys: int, malformed: float = 0.01) -> list[tuple[str, bytes]]:
    """`rows` (stream, value) pairs in random order: skewed keys, some of them broken."""
    rng = random.Random(seed)
    made = []
    for number in range(rows):
        stream = rng.choice(STREAMS)
        # Half of the rows on a tenth of the keys.
        symbol = (
            f"S{rng.randrange(max(keys // 10, 1)) if rng.random() < 0.5 else rng.randrange(keys)}"
        )
        value = json.dumps(message(stream, symbol, number)).encode()
        if rng.random() < malformed:
            value = rng.choice([b"", b"not json", value[:-2], b'{"symbol": null}', b"\xff" + value])
        made.append((stream, value))
    return made


@dataclass
class JournalReader:
    """The journal as it grows: every file of it is read once, however often somebody asks."""

    folder: Path
    version: int = -1
    by_number: dict[int, dict[str, Any]] = field(default_factory=dict)

    def entries(self) -> list[dict[str, Any]]:
        """All entries in order; none before there is a journal."""
        logs = self.folder / "_delta_log"
        while (log := logs / f"{self.version + 1:020d}.json").exists():
            for action in map(json.loads, log.read_text().splitlines()):
                self._add(action.get("add"))
            self.version += 1
        return [self.by_number[n] for n in sorted(self.by_number)]

    def epochs(self) -> list[dict[str, Any]]:
        """All epochs in order."""
        return [entry for entry in self.entries() if entry["kind"] == "epoch"]

    def _add(self, file: dict[str, Any] | None) -> None:
        # A file that is gone was compacted: its entries are in a later one.
        with contextlib.suppress(FileNotFoundError):
            if file is not None:
                for row in pq.read_table(self.folder / file["path"]).to_pylist():
                    self.by_number[row["n"]] = json.loads(row["entry"])


@dataclass
class Day:
    """One warehouse, its topics and its settings. `topics` maps streams to fresh topic names."""

    folder: Path
    bootstrap: str
    topics: Mapping[str, str]
    spark_env: Mapping[str, str]
    slots: int = 2
    groups: int = 32
    budget_bytes: int = 1 << 20
    master: str = "local[2]"
    max_rows: int = 4_000
    extra: dict[str, str] = field(default_factory=dict)
    partitions: int = 2
    broken: frozenset[bytes | None] = frozenset()
    """Values that must not be joined, though `accepted` would take them."""
    client: Mapping[str, Any] = field(default_factory=dict)
    """kafka-python's options of the tests' own clients."""
    store: S3Server | None = None
    """Where the warehouse is, when it is in no folder of this host."""
    optional: tuple[str, ...] = ()
    """Streams whose rows a result may lack."""
    through: Sequence[str] = ()
    """Words in front of every command: what runs it on another host."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.state = Path("/dev/shm" if os.path.isdir("/dev/shm") else self.folder) / (
            f"spillway-test-{os.getpid()}-{self.folder.name}"
        )
        self.journal = JournalReader(self.folder / "warehouse" / "journal")
        lines = []
        for stream, topic in self.topics.items():
            lines += [f"[streams.{stream}]", f'schema = "{stream}"', f'topic = "{topic}"', ""]
        names = ", ".join(f'"{s}"' for s in self.topics)
        lines += ["[join]", f"inputs = [{names}]", 'on = ["symbol"]']
        lines += [f"optional = {list(self.optional)}", ""] if self.optional else [""]
        (self.folder / "query.toml").write_text("\n".join(lines))

    # ------------------------------------------------------------------ input

    def produce(self, made: Sequence[tuple[str, bytes | None]], at_ms: int | None = None) -> None:
        """Send (stream, value) pairs, spread over the partitions, in order.

        `at_ms`: their record time in Kafka; now when it is not given.
        """
        with self.producer(at_ms) as send:
            send(made)

    @contextlib.contextmanager
    def producer(
        self, at_ms: int | None = None
    ) -> Iterator[Callable[[Sequence[tuple[str, bytes | None]]], None]]:
        """`produce` for many batches, over one connection."""
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            max_request_size=16 << 20,
            linger_ms=20,
            **self.client,
        )

        def send(made: Sequence[tuple[str, bytes | None]]) -> None:
            for number, (stream, value) in enumerate(made):
                partition = number % self.partitions
                key = b"tombstone" if value is None else None  # kafka-python needs one of the two
                producer.send(
                    self.topics[stream], value, key=key, partition=partition, timestamp_ms=at_ms
                )
            producer.flush()

        try:
            yield send
        finally:
            producer.close()

    def read_topics(self) -> dict[str, list[tuple[int, int, bytes | None]]]:
        """Per stream (partition, offset, value) of everything that Kafka holds."""
        found: dict[str, list[tuple[int, int, bytes | None]]] = {}
        for stream, topic in self.topics.items():
            consumer = KafkaConsumer(
                bootstrap_servers=self.bootstrap,
                isolation_level="read_committed",
                max_partition_fetch_bytes=16 << 20,
                enable_auto_commit=False,
                **self.client,
            )
            parts = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic))]
            consumer.assign(parts)
            ends = consumer.end_offsets(parts)
            consumer.seek_to_beginning(*parts)
            rows = []
            while any(consumer.position(tp) < ends[tp] for tp in parts):
                for tp, records in consumer.poll(timeout_ms=500).items():
                    rows += [(tp.partition, r.offset, r.value) for r in records]
            consumer.close()
            found[stream] = rows
        return found

    # ------------------------------------------------------------------ commands

    def env(self) -> dict[str, str]:
        """The environment of every command."""
        root = str(self.folder / "warehouse")
        stored: dict[str, str] = {}
        if self.store is not None:
            root = self.store.root(self.folder.name)
            stored = {"WAREHOUSE__OPTIONS": json.dumps(self.store.options)}
        settings = {
            "KAFKA__BOOTSTRAP_SERVERS": self.bootstrap,
            "WAREHOUSE__ROOT": root,
            **stored,
            "WAREHOUSE__FSYNC": "false",
            "STATE__ROOT": str(self.state),
            "STATE__SLOTS": str(self.slots),
            "STATE__GROUPS": str(self.groups),
            "STATE__BUDGET_BYTES": str(self.budget_bytes),
            "STREAM__START": "earliest",
            "STREAM__TRIGGER_S": "0",
            "STREAM__MAX_ROWS_PER_EPOCH": str(self.max_rows),
            "RECOVERY__WAIT_S": "30",
            "SPARK__MASTER": self.master,
            "QUERY": str(self.folder / "query.toml"),
            **self.extra,
        }
        return {
            **os.environ,
            **self.spark_env,
            "PYTHONPATH": ":".join(source_paths(str(ROOT))),
            **{f"SPILLWAY_{name}": value for name, value in settings.items()},
        }

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        """Start a command through the tests' entry point (which knows failpoints)."""
        command = self._command(*arguments)
        with open(self.folder / "log.txt", "a") as log:
            return subprocess.Popen(
                command,
                env={**self.env(), **env},
                cwd=self.folder,
                text=True,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _command(self, *arguments: str) -> list[str]:
        return [*self.through, sys.executable, "-m", "tests.integration.failpoints", *arguments]

    def run(self, *arguments: str, timeout_s: float = 180, **env: str) -> int:
        """Run a command to its end; its exit code (negative: the signal that ended it)."""
        begun = time.monotonic()
        process = self.start(*arguments, **env)
        try:
            code = process.wait(timeout_s)
            with open(self.folder / "log.txt", "a") as log:
                took = time.monotonic() - begun
                log.write(f"--- {' '.join(arguments)}: exit {code} after {took:.1f} s\n")
            return code
        except subprocess.TimeoutExpired:
            end_group(process)
            raise AssertionError(f"{arguments} took over {timeout_s} s\n{self.tail()}") from None
        finally:
            end_group(process)

    def output(self, *arguments: str, timeout_s: float = 180) -> tuple[int, str]:
        """Run a command; its exit code and what it printed."""
        begun = time.monotonic()
        done = subprocess.run(
            self._command(*arguments),
            env=self.env(),
            cwd=self.folder,
            text=True,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
        with open(self.folder / "log.txt", "a") as log:
            took = time.monotonic() - begun
            log.write(f"--- {' '.join(arguments)}: exit {done.returncode} after {took:.1f} s\n")
        return done.returncode, done.stdout + (done.stderr if done.returncode else "")

    def ok(self, *arguments: str, timeout_s: float = 180, **env: str) -> None:
        """Run a command that must succeed."""
        code = self.run(*arguments, timeout_s=timeout_s, **env)
        assert code == 0, f"{arguments} ended with {code}\n{self.tail()}"

    def tail(self, lines: int = 60) -> str:
        """The end of the commands' common log."""
        return "\n".join((self.folder / "log.txt").read_text().splitlines()[-lines:])

    def finish(
        self,
        session: str,
        *,
        first: Sequence[Sequence[str]] = (),
        sealed: bool = False,
        timeout_s: float = 240,
        **env: str,
    ) -> dict[str, Any]:
        """Seal, stream to the seal, clean up, verify: all must succeed, as must what comes `first`.
        What `verify` has said.

        In one process: it starts one JVM where four commands would start three.
        """
        commands = [
            *first,
            *([] if sealed else [["seal", "--session", session]]),
            ["stream", "--until-sealed", session],
            ["cleanup", "--session", session],
            ["verify", "--session", session, "--json"],
        ]
        self.ok(*chained(*commands), timeout_s=timeout_s, **env)
        lines = (self.folder / "log.txt").read_text().splitlines()
        said = next(line for line in reversed(lines) if line.startswith('{"session"'))
        verdict: dict[str, Any] = json.loads(said)
        assert verdict["complete"] is True
        return verdict

    def write_late(self, late: Sequence[tuple[str, bytes]]) -> str:
        """Write late (stream, value) rows into the file `LATE`, for `correct`; its path."""
        rows = [{"topic": self.topics[stream], "value": json.loads(v)} for stream, v in late]
        file = self.folder / LATE
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(file)

    # ------------------------------------------------------------------ output

    def results(self, session: str | None = None) -> list[dict[str, Any]]:
        """Every result of a session (of all), from the newest version of the Delta table."""
        return delta_rows(self.warehouse() / "results", session)

    def quarantined(self) -> list[dict[str, Any]]:
        """Every quarantined row."""
        return delta_rows(self.warehouse() / "quarantine", None)

    def entries(self) -> list[dict[str, Any]]:
        """The journal, entry by entry."""
        self.warehouse()
        return self.journal.entries()

    def epochs(self) -> list[dict[str, Any]]:
        """The journal's epochs; of a store's those that are in it by now."""
        return [entry for entry in self.entries() if entry["kind"] == "epoch"]

    def warehouse(self) -> Path:
        """The folder of the tables; of a store's what is there now is copied to it."""
        here = self.folder / "warehouse"
        if self.store is not None:
            self.store.copied(self.folder.name, here)
        return here

    def sealed(self, session: str) -> dict[str, Any]:
        """The sealed record of a session."""
        [found] = [
            e["sealed"] for e in self.epochs() if e["sealed"] and e["sealed"]["session"] == session
        ]
        return found

    def is_sealed(self, session: str) -> bool:
        """Whether the journal has sealed a session."""
        return any((e["sealed"] or {}).get("session") == session for e in self.epochs())

    def check(self, session: str, *late: Sequence[tuple[str, bytes]]) -> Counter[str]:
        """Compare the session's results with a brute-force join of what Kafka holds.

        `late`: the (stream, value) rows of each correction. Returns the number of results of each
        phase.
        """
        expected = self.expected(session, self.read_topics(), late)
        got, phases = self.found(session)
        missing, surplus = expected - got, got - expected
        assert not missing, f"{missing.total()} missing, e.g. {next(iter(missing))}"
        assert not surplus, f"{surplus.total()} too many, e.g. {next(iter(surplus))}"
        return phases

    def expected(
        self,
        session: str,
        read: Mapping[str, Sequence[tuple[int, int, bytes | None]]],
        late: Sequence[Sequence[tuple[str, bytes]]] = (),
    ) -> Counter[tuple[Any, ...]]:
        """The brute-force join of a session's input. `read`: of `read_topics`. A result is a key,
        and of each stream partition, offset and a value; Nones where it lacks an optional row.
        Rows of the n-th correction in `late` have the partition -n, and are numbered from 1."""
        sealed = self.sealed(session)
        by_key: dict[str, list[list[tuple[Any, ...]]]] = defaultdict(
            lambda: [[] for _ in self.topics]
        )
        for number, (stream, rows) in enumerate(read.items()):
            topic = self.topics[stream]
            for partition, offset, value in rows:
                start, end = sealed["start"][topic], sealed["end"][topic]
                first = start[partition] if partition < len(start) else 0
                if not first <= offset < end[partition]:
                    continue
                body = None if value in self.broken else accepted(stream, value)
                if body is not None:
                    row = (partition, offset, body[VALUE[stream]])
                    by_key[body["symbol"]][number].append(row)
        for revision, corrected in enumerate(late, 1):
            for row_number, (stream, value) in enumerate(corrected, 1):
                body = json.loads(value)
                row = (-revision, row_number, body[VALUE[stream]])
                by_key[body["symbol"]][list(self.topics).index(stream)].append(row)
        nothing = [[(None, None, None)] if s in self.optional else [] for s in self.topics]
        return Counter(
            (key, *combination)
            for key, inputs in by_key.items()
            for combination in itertools.product(
                *(own or none for own, none in zip(inputs, nothing, strict=True))
            )
        )

    def found(self, session: str) -> tuple[Counter[tuple[Any, ...]], Counter[str]]:
        """The session's results, and how many each phase gave."""
        got: Counter[tuple[Any, ...]] = Counter()
        phases: Counter[str] = Counter()
        for row in self.results(session):
            parts = tuple(
                (row[f"{s}_partition"], row[f"{s}_offset"], row[f"{s}_{VALUE[s]}"])
                for s in self.topics
            )
            got[(row["symbol"], *parts)] += 1
            phases[row["phase"]] += 1
        return got, phases

    def check_lossy(
        self,
        session: str,
        read: dict[str, list[tuple[int, int, bytes | None]]],
        gone: dict[tuple[str, int], int],
    ) -> tuple[Counter[tuple[Any, ...]], Counter[str]]:
        """No result is wrong, some are missing, and each of these has a row that is gone.

        `read`: all rows that there ever were; `gone`: by topic and partition the first offset that
        is not. The results, and how many of them came in which phase.
        """
        expected, (got, phases) = self.expected(session, read), self.found(session)
        assert not got - expected
        lacking = expected - got
        assert lacking
        for _, *places in lacking:
            assert any(
                offset < gone.get((self.topics[stream], partition), 0)
                for stream, (partition, offset, _) in zip(STREAMS, places, strict=True)
            )
        return got, phases

    def clean(self) -> None:
        """Remove the state folder (the rest is pytest's)."""
        shutil.rmtree(self.state, ignore_errors=True)


MakeDay = Callable[..., Day]


@contextlib.contextmanager
def fresh_days(
    folder: Path,
    broker: str,
    topics: Callable[..., dict[str, str]],
    spark_env: dict[str, str],
    **usual: Any,
) -> Iterator[MakeDay]:
    """Days on fresh topics, with the `usual` settings or others; their state folders are removed
    afterwards."""
    made: list[Day] = []

    def make(**settings: Any) -> Day:
        names = topics(*STREAMS, partitions=2)
        day = Day(folder / f"day{len(made)}", broker, names, spark_env, **usual | settings)
        made.append(day)
        return day

    yield make
    for day in made:
        day.clean()


def chained(*commands: Sequence[str]) -> list[str]:
    """The words that run commands one after the other in one process, while they succeed."""
    return [word for command in commands for word in (THEN, *command)][1:]


VALUE = {"stock": "price", "volume": "shares", "review": "rating"}
"""Per stream a field whose value results must carry unharmed."""


def accepted(stream: str, value: bytes | None) -> dict[str, Any] | None:
    """The tests' own idea of a good message (they make no borderline ones)."""
    try:
        body = json.loads((value or b"").decode())
    except ValueError:
        return None
    good = isinstance(body, dict) and body.get("symbol") and VALUE[stream] in body
    return body if good else None


def delta_rows(table: Path, session: str | None) -> list[dict[str, Any]]:
    """Rows of a Delta table by its log, as a reader without any of our code would."""
    live: dict[str, dict[str, str]] = {}
    log = table / "_delta_log"
    checkpoint = -1
    if (log / "_last_checkpoint").exists():
        checkpoint = json.loads((log / "_last_checkpoint").read_text())["version"]
        for row in pq.read_table(log / f"{checkpoint:020d}.checkpoint.parquet").to_pylist():
            if row.get("add"):
                live[row["add"]["path"]] = dict(row["add"]["partitionValues"])
    for path in sorted(log.glob("*.json")):
        if path.stem.isdigit() and int(path.stem) > checkpoint:
            for line in path.read_text().splitlines():
                action = json.loads(line)
                if "add" in action:
                    live[action["add"]["path"]] = action["add"]["partitionValues"]
                elif "remove" in action:
                    live.pop(action["remove"]["path"], None)
    rows: list[dict[str, Any]] = []
    for name, values in live.items():
        if session is None or values.get("session_date") == session:
            part = pq.read_table(pa.OSFile(str(table / name.replace("%3D", "="))))
            rows += [{**row, **values} for row in part.to_pylist()]
    return rows


def end_group(process: subprocess.Popen[str]) -> None:
    """End a command and whatever it started, by its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


def wait_for(
    condition: Callable[[], object], timeout_s: float, what: str, every_s: float = 0.1
) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, f"{what}: not within {timeout_s} s"
        time.sleep(every_s)


@contextlib.contextmanager
def running(day: Day, *arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A command that runs beside the test and is ended with it."""
    process = day.start(*arguments, **env)
    try:
        yield process
    finally:
        end_group(process)
