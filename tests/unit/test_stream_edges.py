"""The streaming job's pure parts: restore offsets, chunks, offset log, intake, placement."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from spillway.policy.intake import LEAST_ROWS, rows_per_epoch
from spillway.protocol.recovery import SessionRestore, Since
from spillway.stream import placement as placing
from spillway.stream.decoding import since_offsets
from spillway.stream.placement import Placement
from spillway.stream.session import REQUIRED, SettingsRefused, refuse_wrong
from spillway.stream.source import OffsetLogError, batch_end, spark_offsets, stream_rows
from spillway_schemas.journal import Prefix, SlotTotals

PREFIXES = st.integers(0, 4).flatmap(
    lambda depth: st.builds(Prefix, st.just(depth), st.integers(0, 2**depth - 1))
)


@given(st.lists(st.tuples(PREFIXES, st.integers(0, 50)), max_size=12), st.integers(0, 15))
def test_rows_are_in_memory_since_the_last_cut_that_covers_them(
    cuts: list[tuple[Prefix, int]], top: int
) -> None:
    ordered = sorted(cuts, key=lambda cut: cut[1])
    session = SessionRestore(
        "2026-01-05",
        start={"t": [7]},
        end={"t": [99]},
        cuts=tuple(Since(prefix, {"t": [offset]}) for prefix, offset in ordered),
    )
    for hash_ in (top << 60, (top << 60) + 12345, (top << 60) + 2**60 - 1):
        covering = [offset for p, offset in cuts if p.lo <= hash_ < p.hi]
        found = since_offsets(session, "t", 0)(np.array([hash_], dtype=np.uint64))
        assert found.tolist() == [max([7, *covering])]


def test_a_partition_younger_than_a_cut_is_read_from_its_start() -> None:
    session = SessionRestore(
        "2026-01-05", {"t": [5, 0]}, {"t": [9, 9]}, (Since(Prefix(0, 0), {"t": [8]}),)
    )
    hashes = np.array([0, 2**64 - 1], dtype=np.uint64)
    assert since_offsets(session, "t", 0)(hashes).tolist() == [8, 8]
    assert since_offsets(session, "t", 1)(hashes).tolist() == [0, 0]


def test_offset_log(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    log = tmp_path / "offsets" / "3"
    log.write_text('v1\n{"batchWatermarkMs":0}\n{"b":{"1":7,"0":5},"a":{"0":2}}')
    assert batch_end(tmp_path, 3) == {"a": [2], "b": [5, 7]}
    assert json.loads(spark_offsets({"a": [2, 3]})) == {"a": {"0": 2, "1": 3}}
    with pytest.raises(OffsetLogError, match="cannot be read"):
        batch_end(tmp_path, 4)
    log.write_text("what?")
    with pytest.raises(OffsetLogError, match="unknown form"):
        batch_end(tmp_path, 3)
    log.write_text('w1\n{}\n{"a":{"0":2}}')
    with pytest.raises(OffsetLogError) as error:
        batch_end(tmp_path, 3)
    assert str(error.value) == f"Spark's offset log {log} has an unknown form: ['w1']"


class Frames:
    """Spark as far as reading goes: notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if name in ("read", "readStream"):
            self.asked.append((name,))
            return self

        def note(*given: object, **named: object) -> Frames:
            self.asked.append((name, *given, *named.items()))
            return self

        return note


def test_a_batch_is_all_there_is_from_where_it_begins() -> None:
    options = {"subscribe": "a", "kafka.sasl.jaas.config": SecretStr("x")}
    given = ("options", ("subscribe", "a"), ("kafka.sasl.jaas.config", "x"))
    stream = Frames()
    assert stream_rows(stream, options, {"a": [2, 3]}) is stream
    assert stream.asked == [
        ("readStream",),
        ("format", "kafka"),
        given,
        ("option", "startingOffsets", '{"a": {"0": 2, "1": 3}}'),
        ("load",),
    ]


def totals(slot: int, rows: int, state_bytes: int, rows_in: int) -> SlotTotals:
    return SlotTotals(
        slot=slot,
        budget_bytes=10**6,
        state_bytes=state_bytes,
        folder_bytes=state_bytes,
        rows=rows,
        rows_in={"stock": rows_in},
    )


@pytest.mark.parametrize(
    ("slots", "budget", "expected"),
    [
        # Ample memory: the setting.
        ([totals(0, 1000, 50_000, 10), totals(1, 1000, 50_000, 10)], 10**9, 600_000),
        # 0.8 * (0.2 - 1/32) * 10 MB / 50 B = 27,000 rows for each of two slots.
        ([totals(0, 1000, 50_000, 10), totals(1, 1000, 50_000, 10)], 10**7, 54_000),
        # All rows go to one slot: half of that.
        ([totals(0, 1000, 50_000, 20), totals(1, 1000, 50_000, 0)], 10**7, 27_000),
        # Never so few that epochs cost more than their rows.
        ([totals(0, 1000, 50_000, 10), totals(1, 1000, 50_000, 10)], 10**4, LEAST_ROWS),
        # Nothing seen yet: 80 bytes a row.
        ([], 10**7, 33_750),
    ],
)
def test_rows_per_epoch(slots: list[SlotTotals], budget: int, expected: int) -> None:
    found = rows_per_epoch(slots, budget, 2, threshold=0.8, most=600_000)
    assert abs(found - expected) <= 2


def test_settings_that_move_slots_are_refused() -> None:
    refuse_wrong(dict(REQUIRED))
    with pytest.raises(SettingsRefused, match=r"spark\.locality\.wait = '3s' \(needs '1h'\)"):
        refuse_wrong({**REQUIRED, "spark.locality.wait": "3s"})


class Hosts(Placement):
    """Executors that a test brings and takes."""

    alive: tuple[str, ...] = ()

    def executors(self) -> list[str]:
        return list(self.alive)


@pytest.mark.parametrize(
    ("alive", "back", "cancelled"),
    [("ab", "", False), ("abc", "", False), ("a", "", True), ("", "", True), ("a", "ab", False)],
)
def test_a_job_is_cancelled_when_a_host_that_it_needs_stays_away(
    monkeypatch: pytest.MonkeyPatch, alive: str, back: str, cancelled: bool
) -> None:
    """Slots are pinned to a and b."""
    monkeypatch.setattr(placing, "HOSTS_LOOK_S", 0.02)
    placement = Hosts(None, False, {0: "a", 1: "b"}, away_s=0.3)
    placement.alive = tuple(alive)
    called = threading.Event()
    told: list[str] = []
    with placement.watched(called.set, told.append):
        time.sleep(0.1)
        placement.alive = tuple(back or alive)
        assert called.wait(0.6) == cancelled
    assert len(told) == cancelled
    assert all("has had no executor for 0 s" in text for text in told)
    assert not [t for t in threading.enumerate() if t.name == "placement"]


def test_no_host_is_watched_on_threads() -> None:
    with Placement(None, True).watched(lambda: pytest.fail("cancelled"), pytest.fail):
        assert not [t for t in threading.enumerate() if t.name == "placement"]


def test_a_rehearsal_loads_what_an_epoch_needs() -> None:
    program = (
        "import sys; from spillway.stream.process import rehearse_batches\n"
        "assert list(rehearse_batches([1])) == []\n"
        "ours = {'spillway.stream.decoding', 'spillway.stream.worker', 'pandas'}\n"
        "assert ours <= sys.modules.keys()\n"
        "assert not {'pyspark', 'deltalake'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
