"""Small warehouses as releases have left them: `python -m tests.released` makes one of this code.

`tests/unit/recorded/released-VERSION.tar.xz` holds what a real day on Kafka and Spark leaves: the
tables, the slots' state, the query, and what the topics held. One session is sealed and not
cleaned, the next one is open and has rows. `tests/unit/test_released.py` opens each with the code
of today.

A release adds its own, made by its own code; those of releases before it stay as they are.
"""

from __future__ import annotations

import base64
import json
import lzma
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from spillway.kafka import broker
from spillway.kafka.client import KafkaCluster
from tests.integration.day import STREAMS, Day, messages

FOLDER = Path(__file__).parent / "unit" / "recorded"
SEALED, OPEN = "2026-01-05", "2026-01-06"
MOST_BYTES = 200 * 1024

Messages = Mapping[str, list[tuple[int, int, bytes]]]
"""By topic: partition, offset and value."""


@dataclass(frozen=True)
class Released:
    """One of them, unpacked."""

    folder: Path

    @property
    def root(self) -> str:
        """The warehouse."""
        return str(self.folder / "warehouse")

    @property
    def state(self) -> str:
        """The slots' state: `state.root`."""
        return str(self.folder / "state")

    @property
    def query(self) -> str:
        """The file of its query."""
        return str(self.folder / "query.toml")

    def messages(self) -> Messages:
        """What its topics, which have the streams' names, held."""
        kept = json.loads((self.folder / "topics.json").read_text())
        return {
            topic: [(p, offset, base64.b64decode(value)) for p, offset, value in rows]
            for topic, rows in kept.items()
        }


def archives() -> list[Path]:
    """Those that are kept, the oldest first."""
    return sorted(FOLDER.glob("released-*.tar.xz"))


def unpacked(archive: Path, folder: Path) -> Released:
    """Unpack one into a folder of its own."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return Released(folder)


def make(folder: Path) -> Released:
    """Run the two days on real parts, in an empty folder."""
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    env = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(Path(spark.origin).parent),
    }
    port, controller = broker.free_port(), broker.free_port()
    running = broker.start(folder / "kafka", port, controller_port=controller)
    try:
        view = KafkaCluster(running.bootstrap)
        view.create_topics(dict.fromkeys(STREAMS, 2))
        view.close()
        names = {stream: stream for stream in STREAMS}
        day = Day(
            folder / "day",
            running.bootstrap,
            names,
            env,
            slots=1,
            groups=8,
            budget_bytes=48 << 10,
            max_rows=300,
        )
        day.produce(messages(1, 800, keys=400))
        day.ok("stream", "--session", SEALED, "--available-now")
        day.ok("seal", "--session", SEALED)
        day.produce(messages(2, 150, keys=400))
        day.ok("stream", "--available-now")
        day.ok("status")
        read = day.read_topics()
        made = Released(folder / "made")
        shutil.copytree(day.folder / "warehouse", made.root)
        shutil.copytree(day.state, made.state)
        day.clean()
    finally:
        broker.stop(folder / "kafka")
    shutil.copy(day.folder / "query.toml", made.query)
    kept = {
        stream: [(p, o, base64.b64encode(value or b"").decode()) for p, o, value in rows]
        for stream, rows in read.items()
    }
    (made.folder / "topics.json").write_text(json.dumps(kept))
    return made


def pack(made: Released, archive: Path) -> None:
    """Pack it, without who made it and when."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    with (
        lzma.open(archive, "wb", preset=9 | lzma.PRESET_EXTREME) as out,
        tarfile.open(fileobj=out, mode="w") as packed,
    ):
        for part in sorted(made.folder.iterdir()):
            packed.add(part, part.name, filter=plain)
    assert archive.stat().st_size <= MOST_BYTES, "make it of fewer rows"


def main() -> None:
    """Make that of this code; a name of its own may follow, for a state between two releases."""
    name = sys.argv[1] if len(sys.argv) > 1 else version("spillway")
    archive = FOLDER / f"released-{name}.tar.xz"
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as at:
        pack(make(Path(at)), archive)
    print(f"{archive}: {archive.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
