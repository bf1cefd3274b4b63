"""What a long history costs: `python -m benchmarks.history [--epochs 1000 12000 ...]`.

Makes a warehouse for each length, of sessions of at most 12,000 epochs, through the product's own
functions: plans and entries of the protocol, commits and maintenance of the tables, snapshots. Its
epochs name no files: what is measured is the journal. Then each of these runs in its own process:

    start        the journal's state, and what a driver must redo, up to its claim
    seal         the same state, and the commands that wait
    status       `spillway status`, with nothing remembered of an earlier look, and once more
    controller   `spillway rebalance --dry-run`, after that

Seconds of CPU and the peak of memory. The target: with the longest history each takes at most 1.5
times what it takes with the shortest. Ends with 1 when that is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from jobs.decode import join_spec
from jobs.engine.groups import GroupMap
from jobs.engine.results import result_schema
from jobs.protocol.entry import entry_of
from jobs.protocol.plan import plan_epoch
from jobs.protocol.snapshot import EVERY
from jobs.protocol.state import JournalState, fold
from jobs.tables import Warehouse
from jobs.tables.definitions import DATA_TABLES
from schemas.journal import (
    DELAY_EDGES_MS,
    Claim,
    Command,
    Cut,
    Epoch,
    Genesis,
    PartitionCount,
    Prefix,
    SlotReport,
    SlotTotals,
    Topic,
)
from schemas.query import load_query
from schemas.settings import load_settings

SESSION_EPOCHS = 12_000
TOGETHER = 500
"""Entries that one commit appends here; the stream's commits have one each."""
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


def entries(count: int) -> Iterator[tuple[JournalState, Genesis | Claim | Epoch]]:
    """A genesis, a claim and `count` epochs, each with the state after it."""
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
        commands = []
        if number % SESSION_EPOCHS == SESSION_EPOCHS - 1:
            commands.append(
                Command(id=f"seal/{number}", kind="seal", session=state.session.date, offsets=end)
            )
        after = (date.fromisoformat(state.session.date) + timedelta(days=1)).isoformat()
        plan = plan_epoch(state, end, commands, after)
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
    warehouse = Warehouse(str(root), result_schema(join_spec(QUERY)), fsync=False)
    held: list[Genesis | Claim | Epoch] = []
    for state, entry in entries(count):
        if state.epoch == count - 1 - EVERY // 2:
            _append(warehouse, held)
            warehouse.journal.append(entry)
            warehouse.journal.keep(state)
            continue
        held.append(entry)
        if len(held) == TOGETHER:
            _append(warehouse, held)
    _append(warehouse, held)
    for name in DATA_TABLES:
        warehouse.apply(name, count - 1, [])


def _append(warehouse: Warehouse, held: list[Genesis | Claim | Epoch]) -> None:
    if held:
        warehouse.journal.append(*held)
        held.clear()
        warehouse.maintain()


def look(what: str, root: Path) -> None:
    """Do one of the things that are measured; print what it took as JSON."""
    settings = load_settings(
        None, {"warehouse.root": str(root), "kafka.bootstrap_servers": "127.0.0.1:1"}
    )[0]
    from jobs.protocol import driver as protocol
    from jobs.rebalance import controller
    from jobs.report.command import Looker

    began, cpu = time.perf_counter(), time.process_time()
    if what == "start":
        warehouse = Warehouse(str(root), result_schema(join_spec(QUERY)), fsync=False)
        applied = warehouse.applied_all()
        known, rest = warehouse.journal.read_on(applied)
        driver, _ = protocol.start("host/2", _at(0))
        state = known or fold(None, rest[0])
        event = protocol.JournalRead(rest, applied, state.topics, 2, known)
        protocol.step(driver, event)
    elif what == "seal":
        warehouse = Warehouse(str(root), fsync=False)
        found = warehouse.journal.state()
        assert found is not None
        list(warehouse.commands.unseen(found))
    elif what == "controller":
        controller.run(settings, settings.rebalance.policy, "bench", dry_run=True)
    else:
        Looker(settings).look()
    told = Path("/proc/self/status").read_text()
    peak_kib = int(next(line.split()[1] for line in told.splitlines() if line[:6] == "VmHWM:"))
    took = {
        "s": round(time.perf_counter() - began, 3),
        "cpu_s": round(time.process_time() - cpu, 3),
        "mib": round(peak_kib / 1024),
    }
    print(json.dumps(took))


WISH = 1.5
WHATS = ("start", "seal", "status", "status again", "controller")


def measure(root: Path, var: Path) -> dict[str, dict[str, float]]:
    """What each takes, in a process of its own."""
    shutil.rmtree(var, ignore_errors=True)
    env = {**os.environ, "SPILLWAY_VAR": str(var)}
    found: dict[str, dict[str, float]] = {}
    for what in WHATS:
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the warehouses that are not there, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, nargs="+", default=[1_000, 12_000, 50_000])
    parser.add_argument("--folder", type=Path, default=Path("var/history"))
    parser.add_argument("--look", choices=WHATS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.look:
        look(options.look, options.folder)
        return 0
    found: dict[int, dict[str, dict[str, float]]] = {}
    for count in sorted(options.epochs):
        root = options.folder / str(count)
        began = time.perf_counter()
        if not root.exists():
            make(root, count)
            print(f"{count:,} epochs made in {time.perf_counter() - began:.0f} s", flush=True)
        found[count] = measure(root, options.folder / "var")
    return 0 if _print(found) else 1


def _print(found: dict[int, dict[str, dict[str, Any]]]) -> bool:
    """Print the table. Whether the target is met everywhere."""
    first, last = found[min(found)], found[max(found)]
    print(f"{'':14}" + "".join(f"{count:>18,}" for count in found) + f"{'ratios':>14}")
    met = True
    for what in WHATS:
        texts = [
            f"{each[what]['cpu_s']:.2f} s {each[what]['mib']:,} MiB" for each in found.values()
        ]
        ratios = [last[what][unit] / first[what][unit] for unit in ("cpu_s", "mib")]
        fine = max(ratios) <= WISH
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
