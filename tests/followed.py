"""A warehouse whose results come as a test says: epochs, cleanups, and what is done to files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from spillway.decode import tree_spec
from spillway.engine.join.results import file_schema, result_schema
from spillway.engine.spill.spillfile import spill_schema
from spillway.engine.wire.datafile import write_data_file
from spillway.tables import SessionEvent
from spillway.tables.compaction import compact
from spillway_schemas.filenames import cleanup_name, data_name
from spillway_schemas.journal import Claim, Epoch, FileRecord, Genesis, Sealed, SealRequest
from spillway_schemas.query import load_query
from tests.new_warehouse import new_warehouse

QUERY = load_query("symbol")
SPEC = tree_spec(QUERY)
IDENTITY = [f"{leaf}_{part}" for leaf in QUERY.inputs for part in ("partition", "offset")]
OPEN = datetime(2026, 1, 5, 14, 30, tzinfo=UTC)
SYMBOLS = ("AAPL", "MSFT", "BRK.B", "é")


def day(number: int) -> str:
    """The session of a number."""
    return f"2026-01-{number + 5:02d}"


class Followed:
    """Rows are told by numbers: the offset in `stock` is one that no other row has."""

    def __init__(self, root: Path, warehouse_id: str = "w") -> None:
        self.root = root
        schemas = {"results": result_schema(SPEC), "spill": spill_schema(SPEC)}
        self.warehouse = new_warehouse(root, schemas["results"], spill=schemas["spill"])
        self.epoch = -1
        self.session = 0
        self.sealed: dict[int, int] = {}
        """The epoch of each session's seal."""
        self.ranges: dict[int, int] = {}
        self.given: list[int] = []
        """The numbers of all rows that a follower must see."""
        self.waiting: dict[int, list[int]] = {}
        """Those of cleanups that are not complete yet."""
        self._next = 0
        w = self.warehouse.journal
        w.append(
            Genesis(
                warehouse_id=warehouse_id,
                cluster_id="c",
                topics=[],
                query=QUERY.fingerprint,
                session=day(0),
                start={stream: [0] for stream in QUERY.inputs},
                start_rule="earliest",
                inputs=3,
                groups=[],
                written_at=OPEN.isoformat(),
            ),
            Claim(n=1, term=1, driver="d", written_at=OPEN.isoformat()),
        )

    def run_epoch(self, counts: Sequence[int], text: str | None = None) -> None:
        """One epoch with a file of so many results each; `text`: in a field of all of them."""
        self.epoch += 1
        files: list[FileRecord] = []
        for k, count in enumerate(counts):
            numbers = self._numbers(count)
            name = data_name(self.epoch, "aaaaaaaaaaaa", 0, k)
            files += self._file(name, self.session, "run-time", self.epoch, numbers, text)
            self.given += numbers
        self.warehouse.journal.append(self._entry(files))
        if files:
            self.warehouse.apply("results", self.epoch, files)

    def seal(self) -> None:
        """The session ends with an epoch without rows."""
        ended, end = self.session, {stream: [0] for stream in QUERY.inputs}
        self.epoch += 1
        self.session += 1
        self.sealed[ended] = self.epoch
        self.waiting[ended], self.ranges[ended] = [], 0
        seal = SealRequest(session=day(ended), end=end, next_session=day(self.session), command="s")
        sealed = Sealed(
            session=day(ended),
            epoch=self.epoch,
            start=end,
            end=end,
            ranges=[],
            results=0,
            spilled_rows=0,
            generations=0,
        )
        self.warehouse.journal.append(self._entry([], seal, sealed))

    def clean(self, session: int, count: int) -> None:
        """One range of a cleanup."""
        numbers, n = self._numbers(count), self.ranges[session]
        name = cleanup_name(day(session), n, "aaaaaaaaaaaa", 0)
        files = self._file(name, session, "cleanup", self.sealed[session], numbers)
        self.warehouse.apply_cleanup(day(session), {n: files})
        self.ranges[session] += 1
        self.waiting[session] += numbers

    def finish(self, session: int) -> None:
        """A cleanup has ended, or another one of the same session says so again."""
        numbers = self.waiting.pop(session, [])
        self.warehouse.sessions.append(
            SessionEvent(session=day(session), event="cleaned", cleanup=len(numbers))
        )
        self.given += numbers

    def compact(self) -> None:
        """Merge what there is to merge."""
        compact(self.warehouse.table("results"), fan_in=2)

    def checkpoint(self) -> None:
        """Write a checkpoint; see `KEEP_ENTRIES` for what is deleted then."""
        self.warehouse.table("results").checkpoint(1)

    def vacuum(self) -> None:
        """Delete what no table names."""
        self.warehouse.vacuum(min_age_s=0, now_s=time.time() + 10)

    def _numbers(self, count: int) -> list[int]:
        self._next += count
        return list(range(self._next - count, self._next))

    def _file(
        self,
        name: str,
        session: int,
        phase: str,
        epoch: int,
        numbers: Sequence[int],
        text: str | None = None,
    ) -> list[FileRecord]:
        rows = [self.row(number, epoch, phase, text) for number in numbers]
        table = pa.Table.from_pylist(rows, schema=file_schema(SPEC))
        record = write_data_file(
            self.warehouse.folder("results"),
            "results",
            name,
            table.schema,
            [table],
            {"session_date": day(session)},
        )
        return [] if record is None else [record]

    @staticmethod
    def row(number: int, epoch: int, phase: str, text: str | None = None) -> dict[str, Any]:
        """A row as it is in its file."""
        at = OPEN + timedelta(microseconds=number)
        return {
            "symbol": SYMBOLS[number % len(SYMBOLS)],
            **{f"{leaf}_{part}": 0 for leaf in QUERY.inputs for part in ("partition", "offset")},
            "stock_ts": at,
            "stock_price": number / 8,
            "review_text": text,
            "stock_offset": number,
            "epoch": epoch,
            "phase": phase,
            "committed_at": at + timedelta(seconds=epoch),
        }

    def _entry(
        self,
        files: list[FileRecord],
        seal: SealRequest | None = None,
        sealed: Sealed | None = None,
    ) -> Epoch:
        return Epoch(
            n=self.epoch + 2,
            term=1,
            epoch=self.epoch,
            session=day(self.session),
            end={stream: [0] for stream in QUERY.inputs},
            manifests={},
            files=files,
            cuts=[],
            read=[],
            seal=seal,
            sealed=sealed,
            results={},
            slots=[],
            started_at=OPEN.isoformat(),
            written_at=OPEN.isoformat(),
        )
