"""Days across two hosts with addresses, names and `/dev/shm` of their own: each exact."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.day import messages
from tests.integration.two_hosts import SESSION, two_hosts

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]


def test_a_day_across_two_hosts(tmp_path: Path, spark_env: dict[str, str]) -> None:
    """Groups move from host to host while rows come; more is kept in state than fits, too."""
    with two_hosts(
        tmp_path, spark_env, groups=8, budget_bytes=96 << 10, max_rows=2_000
    ) as hosted:
        day = hosted.day
        day.produce(messages(1, 4_000, keys=1_500))
        hosted.start()
        hosted.read(4_000)
        hosted.ask("--move", "3/0:1", "--move", "3/1:1", "--move", "3/7:0")
        day.produce(messages(2, 4_000, keys=1_500))
        hosted.read(8_000)
        for slot, host in enumerate(("host-a", "host-b")):
            found = hosted.network.hosts[host].run("ls", *map(str, day.state.glob("*")), str(day.state))
            print(slot, host, found)
        hosted.finish()
        epochs = hosted.epochs()
        print([[s["host"] for s in e["slots"]] for e in epochs][-1])
        print([e["moved"] for e in epochs if e["moved"]])
        assert not any(e.get("restored_slots") for e in epochs)
        phases = day.check(SESSION)
        assert phases["cleanup"] > 0
        assert phases["run-time"] > 0
        print(phases)
