"""What a long history costs: `python -m benchmarks.history [--epochs 1000 12000 250000]`.

Makes a warehouse for each length, of sessions of 1,000 epochs with 25 commands each, through the
product's own functions: plans and entries of the protocol, commits and the night's maintenance of
the tables, snapshots; logs are as short as after so long a time. The last 300 epochs have commits
of their own, so that the logs of all these warehouses are as long as those of a stream that runs.
Epochs name no files: what is measured is the journal. Then each of these runs in a process of its
own:

    start        the state twice (doctor, driver), what must be redone, the commands, the claim
    seal         the state, and the commands that wait
    close        the state and the entries of the last sealed day: cleanup's and verify's beginnings
    status       `spillway status`, with nothing remembered of an earlier look, and once more: the
                 newest sessions and the count of the others, as a terminal shows them
    page         the first answer of the page in Airflow, after that
    controller   `spillway rebalance --dry-run`, after that

Seconds of CPU, and MiB above what the imports take: medians of five rounds (`--rounds`), since
single runs of so short a time differ by a third. The target: with the longest history each
takes at most 1.5 times the CPU time and the whole memory that it takes with the shortest.

`--day 12000` measures the tables instead: a day of so many epochs that write a file of results
each. A commit and a refresh at its end against its beginning (target: at most 1.5 times), live
files of results (under 500), and a count of the day in DuckDB (under 2 s).

`--archive 12000` measures the archive: a journal of so many epochs before and after all of it that
may be archived was. Bytes of the table and the archive, and what a start, `status` and doctor's
reading of all entries take.

Ends with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from spillway.clock import system_clock
from spillway.decode import tree_spec
from spillway.engine.groups import GroupMap
from spillway.engine.join.results import result_schema
from spillway.engine.wire.datafile import write_data_file
from spillway.maintenance import maintain
from spillway.protocol.entry import entry_of
from spillway.protocol.plan import plan_epoch
from spillway.protocol.snapshot import EVERY
from spillway.protocol.state import JournalState, fold
from spillway.readmodel.kept import keep
from spillway.tables import SessionEvent, Warehouse, log
from spillway.tables.archive import FOLDER as ARCHIVE
from spillway.tables.definitions import DATA_TABLES
from spillway_schemas.commands import Command, SealCommand, SpillCommand
from spillway_schemas.filenames import data_name
from spillway_schemas.journal import (
    DELAY_EDGES_MS,
    Claim,
    Cut,
    Epoch,
    Genesis,
    PartitionCount,
    Prefix,
    SlotReport,
    SlotTotals,
    Topic,
)
from spillway_schemas.query import load_query
from spillway_schemas.settings import load_settings

SESSION_EPOCHS = 1_000
COMMAND_EVERY = 40
"""Epochs between two commands: a policy's spill, obeyed at once."""
TOGETHER = 500
"""Entries that one commit appends here, but for the last ones; the stream's have one each."""
SLOTS = 2
PARTITIONS = 6
TOPICS = ("review", "stock", "volume")
ROWS = 1_000
"""Of a partition in an epoch."""
CUTS = 16
"""Ranges that a spill cuts; every eighth epoch spills."""
BEGAN = datetime(2026, 1, 5, 14, 30, tzinfo=UTC)
EPOCH_S = 2.0
QUERY = load_query("symbol")


def entries(
    count: int, commands: list[Command]
) -> Iterator[tuple[JournalState, Genesis | Claim | Epoch]]:
    """A genesis, a claim and `count` epochs, each with the state after it.

    What they answer is added to `commands`.
    """
    topics = [Topic(name=name, id=f"id-{name}", partitions=PARTITIONS) for name in TOPICS]
    genesis = Genesis(
        warehouse_id="history",
        cluster_id="c",
        topics=topics,
        query=QUERY.fingerprint,
        session="2026-01-05",
        start={name: [0] * PARTITIONS for name in TOPICS},
        start_rule="earliest",
        inputs=len(TOPICS),
        groups=GroupMap.initial(512, SLOTS).assignment(),
        written_at=_at(-2),
    )
    state = fold(None, genesis)
    yield state, genesis
    claim = Claim(n=1, term=1, driver="host/1", cores=2, written_at=_at(-1))
    state = fold(state, claim)
    yield state, claim
    for number in range(count):
        end = {name: [ROWS * (number + 1)] * PARTITIONS for name in TOPICS}
        fresh: list[SpillCommand | SealCommand] = []
        if number % COMMAND_EVERY == 0:
            name = f"pooled/{number:08x}"
            fresh.append(
                SpillCommand(
                    id=f"{name}/0", decision=name, slot=0, bytes=1, policy="pooled", settings={}
                )
            )
        if number % SESSION_EPOCHS == SESSION_EPOCHS - 1:
            name, date_ = f"seal/{number}", state.session.date
            fresh.append(SealCommand(id=name, session=date_, offsets=end))
        commands += fresh
        after = (date.fromisoformat(state.session.date) + timedelta(days=1)).isoformat()
        plan = plan_epoch(state, end, fresh, after, commands_n=len(commands) - 1)
        reports = [_report(slot, number, state.session.date) for slot in range(SLOTS)]
        entry = entry_of(
            state,
            plan,
            reports,
            started_at=_at(number),
            written_at=_at(number + 0.9),
            seconds={"job": 1.5, "commit": 0.1},
            limit_rows=100_000,
        )
        state = fold(state, entry)
        yield state, entry


def _at(number: float) -> str:
    moment = BEGAN + timedelta(seconds=EPOCH_S * number)
    return moment.isoformat(timespec="milliseconds")


def _report(slot: int, number: int, session: str) -> SlotReport:
    spills = number % 8 == slot
    first = number * CUTS % 512
    cuts = [
        Cut(session=session, operator=0, range=Prefix(9, (first + k) % 512), epoch=number)
        for k in range(CUTS if spills else 0)
    ]
    delay = [0] * (len(DELAY_EDGES_MS) + 1)
    delay[20] = 100
    read = [
        PartitionCount(
            topic=name,
            partition=partition,
            rows=ROWS,
            rejected=1,
            filtered=0,
            bytes=80 * ROWS,
            digest=(number * 0x9E3779B97F4A7C15) % 2**64,
        )
        for name in TOPICS
        for partition in range(slot, PARTITIONS, SLOTS)
    ]
    totals = SlotTotals(
        slot=slot,
        host="host",
        budget_bytes=1 << 30,
        state_bytes=(number % 100) << 20,
        folder_bytes=(number % 100) << 20,
        rows=number % 100 * 10_000,
        rows_in=dict.fromkeys(TOPICS, ROWS * PARTITIONS // SLOTS),
        results=5_000,
        spilled_bytes=spills << 20,
        spilled_rows=spills * 5_000,
        groups=256,
        busy_s=1.0,
        seconds={"load": 0.1, "install": 0.1, "join": 0.4, "write": 0.3, "manifest": 0.1},
        delay_ms=delay,
    )
    return SlotReport(
        slot=slot,
        epoch=number,
        attempt="a",
        manifest=f"{number}-{slot}-{'0' * 64}.arrow",
        cuts=cuts,
        read=read,
        results={session: 5_000},
        spilled_rows={session: 5_000} if spills else {},
        recent_input_ms=int(BEGAN.timestamp() * 1000 + number * EPOCH_S * 1000),
        totals=totals,
    )


def make(root: Path, count: int) -> None:
    """A warehouse with a journal of `count` epochs. The last snapshot is half its distance back."""
    warehouse = Warehouse(str(root), result_schema(tree_spec(QUERY)), fsync=False)
    # It is written in minutes: what logs keep for a while must go as if it were as old as it looks.
    log.KEEP_S, log.REMOVED_KNOWN_S = 0.0, 0  # type: ignore[attr-defined]
    held: list[Genesis | Claim | Epoch] = []
    commands: list[Command] = []
    asked, proved = 0, set[str]()
    for state, entry in entries(count, commands):
        held.append(entry)
        apart = state.epoch >= count - log.KEEP_ENTRIES
        if len(held) < TOGETHER and not apart:
            continue
        warehouse.journal.append(*held)
        held.clear()
        if len(commands) > asked:
            warehouse.commands.append(*commands[asked:])
            asked = len(commands)
        for name in DATA_TABLES if apart else ():
            warehouse.apply(name, state.epoch, [])
        warehouse.maintain()
        for session in sorted(state.sealed.keys() - proved):
            prove(warehouse, session, len(state.sealed[session].ranges))
        proved |= state.sealed.keys()
        if not apart or state.epoch == count - 1 - EVERY // 2:
            warehouse.journal.keep(state)
            keep(warehouse)
    maintain(warehouse, keep_spilled_days=30, keep_statistics_days=30)  # as every night


def prove(warehouse: Warehouse, session: str, ranges: int) -> None:
    """What the tables say of a session that was sealed, cleaned and proved complete."""
    for n in range(ranges):
        warehouse.apply_cleanup(session, {n: []})
    for event in ("sealed", "cleaning", "cleaned"):
        warehouse.sessions.append(SessionEvent(session=session, event=event, seconds=9.0))
    verdict = SessionEvent(session=session, event="verified", complete=True, missing=0)
    warehouse.sessions.append(verdict)


def look(what: str, root: Path) -> None:
    """Do one of the things that are measured; print what it took as JSON."""
    settings = load_settings(
        None, {"warehouse.root": str(root), "kafka.bootstrap_servers": "127.0.0.1:1"}
    )[0]
    from spillway.cleanup.plan import sealed_session
    from spillway.live.watch import Watch
    from spillway.protocol import driver as protocol
    from spillway.rebalance import controller
    from spillway.report.looking import Looker
    from spillway.report.shown import SESSIONS

    before, began, cpu = _memory_mib("VmRSS"), time.perf_counter(), time.process_time()
    if what == "start":
        warehouse = Warehouse(str(root), result_schema(tree_spec(QUERY)), fsync=False)
        warehouse.journal.state()
        applied = warehouse.applied_all()
        known, rest = warehouse.journal.read_on(applied)
        driver, _ = protocol.start("host/2", _at(0))
        state = known or fold(None, rest[0])
        event = protocol.JournalRead(rest, applied, state.topics, 2, known)
        protocol.step(driver, event)
        list(warehouse.commands.unseen(state))
    elif what == "close":
        warehouse = Warehouse(str(root), fsync=False)
        found = warehouse.journal.state()
        assert found is not None
        last = max(found.sealed)
        sealed = sealed_session(found, last, QUERY.fingerprint, warehouse.commands.unseen(found))
        warehouse.journal.read_session(sealed)
    elif what == "doctor":
        assert Warehouse(str(root), fsync=False).check() == []
    elif what == "page":
        seen = Watch(lambda: settings).seen()
        assert seen.status is not None
    elif what == "seal":
        warehouse = Warehouse(str(root), fsync=False)
        found = warehouse.journal.state()
        assert found is not None
        list(warehouse.commands.unseen(found))
    elif what == "controller":
        controller.run(
            settings, settings.rebalance.policy, "bench", dry_run=True, clock=system_clock
        )
    else:
        Looker(settings).look(newest=SESSIONS)
    took = {
        "s": round(time.perf_counter() - began, 3),
        "cpu_s": round(time.process_time() - cpu, 3),
        "mib": _memory_mib("VmHWM"),
        "more_mib": _memory_mib("VmHWM") - before,
    }
    print(json.dumps(took))


def _memory_mib(what: str) -> int:
    """A figure of this process, as the kernel has it."""
    told = Path("/proc/self/status").read_text().splitlines()
    return round(int(next(line.split()[1] for line in told if line.startswith(what))) / 1024)


TARGET = 1.5
WHATS = ("start", "seal", "close", "status", "status again", "page", "controller")


ARCHIVED_WHATS = ("start", "status", "doctor")

Figures = dict[str, dict[str, float]]
"""Per thing that is measured, its figures."""


def measure(root: Path, var: Path, whats: Sequence[str] = WHATS) -> Figures:
    """What each takes, in a process of its own."""
    shutil.rmtree(var, ignore_errors=True)
    env = {**os.environ, "SPILLWAY_VAR": str(var)}
    found: Figures = {}
    for what in whats:
        command = [
            sys.executable,
            "-m",
            "benchmarks.history",
            "--look",
            what,
            "--folder",
            str(root),
        ]
        done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
        found[what] = json.loads(done.stdout)
    return found


def medians(rounds: Sequence[Mapping[int, Figures]]) -> dict[int, Figures]:
    """Of each figure, over the rounds."""
    return {
        count: {
            what: {
                unit: float(np.median([each[count][what][unit] for each in rounds]))
                for unit in units
            }
            for what, units in whats.items()
        }
        for count, whats in rounds[0].items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the warehouses that are not there, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, nargs="+", default=[1_000, 12_000, 250_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("var/history"))
    parser.add_argument("--day", type=int, help="measure the tables by a day of so many epochs")
    parser.add_argument("--archive", type=int, help="measure the archive of so many epochs")
    parser.add_argument("--look", choices=(*WHATS, "doctor"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.look:
        look(options.look, options.folder)
        return 0
    if options.day:
        return 0 if day(options.folder / f"day-{options.day}", options.day) else 1
    var = options.folder / "var"
    if options.archive:
        archive(options.folder / f"archive-{options.archive}", options.archive)
        return 0
    for count in options.epochs:
        root = options.folder / str(count)
        began = time.perf_counter()
        if not root.exists():
            make(root, count)
            print(f"{count:,} epochs made in {time.perf_counter() - began:.0f} s", flush=True)
    rounds = []
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        rounds.append({n: measure(options.folder / str(n), var) for n in sorted(options.epochs)})
    return 0 if _print(medians(rounds)) else 1


def day(root: Path, count: int) -> bool:
    """Write a day of results, epoch by epoch; print what it takes. Whether the targets are met."""
    shutil.rmtree(root, ignore_errors=True)
    # Here an epoch takes milliseconds: the log's entries must not wait for ten minutes to go.
    log.KEEP_S = 0.0
    schema = result_schema(tree_spec(QUERY))
    warehouse = Warehouse(str(root), schema, fsync=False)
    table = warehouse.table("results")
    columns = table.definition.file_schema
    rows = pa.table([_values(each.type) for each in columns], schema=columns)
    partition = {"session_date": "2026-01-05"}
    took_s = []
    for number in range(count):
        name = data_name(number, f"{number:016x}", 0, 0)
        record = write_data_file(table.place, "results", name, columns, [rows], partition)
        assert record is not None
        began = time.process_time()
        warehouse.apply("results", number, [record])
        table.refresh()
        took_s.append(time.process_time() - began)
        warehouse.maintain()
    # Whole distances between two checkpoints of the log: a commit costs more far behind one.
    window = min(2 * log.CHECKPOINT_EVERY, count // 2)
    first, last = float(np.mean(took_s[:window])), float(np.mean(took_s[-window:]))
    live = len(table.files())
    began = time.perf_counter()
    counted = duckdb.sql(f"select count(*) from delta_scan('{root}/results')").fetchone()
    count_s = time.perf_counter() - began
    assert counted == (count * len(rows),)
    met = last <= TARGET * first and live < 500 and count_s < 2
    print(
        f"{count:,} epochs: commit and refresh {first * 1e3:.2f} ms at the beginning, "
        f"{last * 1e3:.2f} ms at the end ({last / first:.2f} times), {live} live files, "
        f"a count in DuckDB {count_s:.2f} s: {'met' if met else 'missed'}"
    )
    return met


def archive(root: Path, count: int) -> None:
    """Make a journal and archive it; print what it takes before and after."""
    shutil.rmtree(root, ignore_errors=True)
    make(root, count)
    for when in ("before", "after"):
        warehouse = Warehouse(str(root), fsync=False)
        if when == "after":
            began = time.perf_counter()
            report = maintain(
                warehouse,
                keep_spilled_days=30,
                keep_statistics_days=30,
                archive_journal_days=0,
            )
            took_s = time.perf_counter() - began
            [done] = [each for each in report.tables if each.table == "journal"]
            print(f"{done.archived_rows:,} entries into {done.archived.files} in {took_s:.1f} s")
        table = sum(file.bytes for file in warehouse.files("journal"))
        archived = sum(file.bytes for file in warehouse.place.child(ARCHIVE).list())
        told = [f"table {table / 1e6:.2f} MB", f"archive {archived / 1e6:.2f} MB"]
        for what, figures in measure(root, root.parent / "var", ARCHIVED_WHATS).items():
            told.append(f"{what} {{cpu_s:.2f}} s +{{more_mib}} MiB".format_map(figures))
        print(f"{when}: {', '.join(told)}", flush=True)


def _values(kind: pa.DataType, rows: int = 20) -> pa.Array:
    """A column of some rows."""
    if pa.types.is_string(kind):
        return pa.array([f"value {n}" for n in range(rows)], kind)
    return pa.array(range(rows), pa.int64()).cast(kind)


def _print(found: Mapping[int, Figures]) -> bool:
    """Print the table. Whether the target is met everywhere."""
    first, last = found[min(found)], found[max(found)]
    print(f"{'':14}" + "".join(f"{count:>18,}" for count in found) + f"{'ratios':>14}")
    met = True
    for what in WHATS:
        texts = [
            "{cpu_s:.2f} s +{more_mib:,.0f} MiB".format_map(each[what]) for each in found.values()
        ]
        ratios = [last[what][unit] / first[what][unit] for unit in ("cpu_s", "mib")]
        fine = max(ratios) <= TARGET
        met = met and fine
        shown = " ".join(f"{ratio:.2f}" for ratio in ratios)
        print(
            f"{what:14}"
            + "".join(f"{text:>18}" for text in texts)
            + f"{shown:>14} {'met' if fine else 'missed'}"
        )
    return met


if __name__ == "__main__":
    sys.exit(main())
