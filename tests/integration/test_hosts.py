"""The tests' own hosts: they end with whoever made them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.hosts import NEEDED, hosts, refusal
from tests.integration.day import wait_for
from tests.missing import without

pytestmark = pytest.mark.server


@pytest.fixture(autouse=True)
def _allowed() -> None:
    if why := refusal():
        without(NEEDED, why)


def test_nothing_is_left_of_hosts_when_the_test_raises(tmp_path: Path) -> None:
    """Servers of tests before it may be children of this process, too."""
    made: list[psutil.Process] = []
    before = set(psutil.Process().children(recursive=True))

    def fail() -> None:
        with hosts(tmp_path, "a", "b", loss={"b": 0.5}):
            made.extend(set(psutil.Process().children(recursive=True)) - before)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(made) == 6
    wait_for(lambda: not [each for each in made if lives(each)], 10, "all have gone")
    assert "br0" not in psutil.net_if_addrs(), "this thread is back in its own network"


def test_nothing_is_left_of_hosts_when_the_test_is_killed(tmp_path: Path) -> None:
    """Nor of what runs on them."""
    code = (
        "import subprocess, sys, time\n"
        "from pathlib import Path\n"
        "from tests.hosts import hosts\n"
        "with hosts(Path(sys.argv[1]), 'a', 'b', loss={'b': 0.5}) as network:\n"
        "    subprocess.Popen(network.hosts['a'].words('sleep', '1000'))\n"
        "    print('up', flush=True)\n"
        "    time.sleep(1000)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE
    ) as made:
        assert made.stdout is not None
        try:
            assert made.stdout.readline() == b"up\n"
            found = psutil.Process(made.pid).children
            wait_for(lambda: len(found(recursive=True)) == 8, 10, "nsenter has made its process")
            children = found(recursive=True)
        finally:
            made.kill()
    wait_for(lambda: not [c for c in children if lives(c)], 10, "all have gone")


def lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
