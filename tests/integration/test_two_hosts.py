"""Days across two hosts with addresses, names and `/dev/shm` of their own: each exact."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.integration.day import messages
from tests.integration.two_hosts import SESSION, Hosted, two_hosts

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]

CUT_S = 60.0
ROWS = 4_000
"""Of each message batch."""


def state_of(hosted: Hosted, host: str) -> list[str]:
    """The folders of slots that a host has."""
    found = hosted.network.hosts[host].run("find", str(hosted.day.state), "-name", "slot-*")
    return sorted(Path(line).name for line in found.splitlines())


def test_a_day_across_two_hosts(tmp_path: Path, spark_env: dict[str, str]) -> None:
    """Groups move from host to host while rows come, and state is spilled."""
    with two_hosts(tmp_path, spark_env, groups=8, budget_bytes=192 << 10, max_rows=ROWS) as hosted:
        day = hosted.day
        day.produce(messages(1, ROWS, keys=1_500))
        hosted.start()
        hosted.read(ROWS)
        hosted.ask("--move", "3/0:1", "--move", "3/1:1", "--move", "3/7:0")
        day.produce(messages(2, ROWS, keys=1_500))
        hosted.read(2 * ROWS)
        assert state_of(hosted, "host-a") == ["slot-0"]
        assert state_of(hosted, "host-b") == ["slot-1"]
        assert not day.state.exists(), "state is on this machine, and not on the hosts"
        hosted.finish()
        epochs = hosted.epochs()
        placed = {tuple(slot["host"] for slot in epoch["slots"]) for epoch in epochs}
        assert placed == {("host-a", "host-b")}
        assert [len(epoch["moved"]) for epoch in epochs if epoch["moved"]] == [3]
        assert not any(epoch["restored_slots"] for epoch in epochs)
        phases = day.check(SESSION)
        assert phases["cleanup"] > 0
        assert phases["run-time"] > 0


@pytest.mark.soak
def test_a_link_is_cut_for_a_minute(tmp_path: Path, spark_env: dict[str, str]) -> None:
    """In the middle of the day, while rows come."""
    with two_hosts(tmp_path, spark_env, groups=8, budget_bytes=1 << 20, max_rows=ROWS) as hosted:
        day = hosted.day
        day.produce(messages(1, ROWS, keys=1_500))
        hosted.start()
        hosted.read(ROWS)
        with trickle(hosted, 2):
            time.sleep(5)
            hosted.network.cut("host-b")
            cut = time.monotonic()
            time.sleep(CUT_S / 2)
            code, seen = day.output("status")
            print(code, seen)
            time.sleep(CUT_S - (time.monotonic() - cut))
            hosted.network.mend("host-b")
            mended, before = time.monotonic(), hosted.rows()
            hosted.read(int(before) + 1, timeout_s=240)
            print(f"rows again {time.monotonic() - mended:.1f} s after the link was mended")
            time.sleep(5)
        hosted.finish()
        print(hosted.log())
        day.check(SESSION)


@pytest.mark.soak
@pytest.mark.parametrize("loss", [0.01, 0.05])
def test_packets_are_lost(tmp_path: Path, spark_env: dict[str, str], loss: float) -> None:
    """Of all that host-b sends and is sent, groups that move among it."""
    with two_hosts(
        tmp_path, spark_env, loss=loss, groups=8, budget_bytes=192 << 10, max_rows=ROWS
    ) as hosted:
        day = hosted.day
        began = time.monotonic()
        day.produce(messages(1, ROWS, keys=1_500))
        hosted.start()
        hosted.read(ROWS, timeout_s=300)
        hosted.ask("--move", "3/0:1", "--move", "3/1:1", "--move", "3/7:0")
        day.produce(messages(2, 2 * ROWS, keys=1_500))
        hosted.read(3 * ROWS, timeout_s=300)
        hosted.finish()
        came, lost = hosted.network.lost("host-b")
        print(f"{lost:,} of {came:,} packets lost, {time.monotonic() - began:.1f} s")
        assert lost > came * loss / 2
        assert any(epoch["moved"] for epoch in hosted.epochs())
        assert day.check(SESSION)["cleanup"] > 0


class trickle:
    """Rows that come all the time while the block runs."""

    def __init__(self, hosted: Hosted, seed: int) -> None:
        self._hosted, self._seed = hosted, seed
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        with self._hosted.day.producer() as send:
            while not self._over.wait(0.5):
                send(messages(self._seed, 200, keys=1_500))
                self._seed += 1

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
