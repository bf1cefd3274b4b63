"""The demo's folder: settings of its own, so that what it made can be looked at afterwards.

    var/demo/spillway.toml   settings of everything below: `spillway --config ... status`
    var/demo/warehouse/      the Delta tables
    var/demo/kafka/          the broker's data (`spillway --config ... kafka start` serves it again)
    var/demo/report.html     the report
    var/demo/log/            what each command printed

Each run makes the folder anew. State lies in memory under a name of its own and is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spillway.kafka import broker
from spillway.private import open_private, private_folder
from spillway_schemas.settings import Settings, load_settings

SLOTS = 2
SHARES = "3,1"
HEAD = """# Settings of the demo's warehouse, written by `spillway demo`.
# Use it with: spillway --config <this file> status
"""


class DemoRuns(RuntimeError):
    """Another demo runs in the same folder."""


@dataclass(frozen=True)
class Place:
    """Where one demo lies."""

    folder: Path
    settings: Settings

    @property
    def config(self) -> Path:
        """The settings file."""
        return self.folder / "spillway.toml"

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.folder / "report.html"

    @property
    def logs(self) -> Path:
        """What the commands print."""
        return self.folder / "log"

    @property
    def service(self) -> Path:
        """The streaming service that Airflow starts: its process id and its log."""
        return self.folder / "service"

    @property
    def airflow(self) -> Path:
        """Airflow's home."""
        return self.folder / "airflow"

    @property
    def all_logs(self) -> list[Path]:
        """Where there is something to read: which of them are there depends on who ran the day."""
        places = (self.logs, self.service, self.airflow / "logs", self.airflow / "airflow.log")
        return [place for place in places if place.exists()]

    @property
    def kafka(self) -> Path:
        """The broker's folder."""
        return self.folder / "kafka"

    def forget_state(self) -> None:
        """Remove the state files: the warehouse does not need them any more."""
        shutil.rmtree(self.settings.state.root, ignore_errors=True)


@contextlib.contextmanager
def demo_place(
    base: Settings, folder: Path, budget_bytes: int, *, query: str = "symbol", keep: bool = False
) -> Iterator[Place]:
    """A fresh folder, with a settings file and a free port, locked while the demo runs.

    What an earlier demo left is removed, or with `keep` moved to `<folder>-1`, `-2`, ...
    Raises `DemoRuns`.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f"{folder.name}.lock", "w", opener=open_private) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoRuns(f"another demo runs in {folder}; wait for its end") from None
        if folder.exists():
            # A demo that was killed may have left its broker.
            broker.stop(folder / "kafka")
            if keep:
                folder.rename(_free_name(folder))
            else:
                shutil.rmtree(folder)
        private_folder(folder)
        settings = _settings(base, folder, budget_bytes, query)
        place = Place(folder, settings)
        place.forget_state()
        try:
            yield place
        finally:
            place.forget_state()


def _settings(base: Settings, folder: Path, budget_bytes: int, query: str) -> Settings:
    """The demo's own settings, written down; what the user may choose is taken over."""
    state = Path(base.state.root).with_name(Path(base.state.root).name + "-demo")
    lines = [
        HEAD,
        f'query = "{query}"',
        "[kafka]",
        f'bootstrap_servers = "127.0.0.1:{broker.free_port()}"',
        'data_dir = "kafka"',
        "[warehouse]",
        'root = "warehouse"',
        "[state]",
        f"root = {_quoted(str(state))}",
        f"groups = {base.state.groups}",
        f"slots = {SLOTS}",
        f'shares = "{SHARES}"                # uneven, for the controller to even out',
        f"budget_bytes = {budget_bytes}      # about a quarter of what the day's state needs",
        "[spill]",
        f"threshold = {base.spill.threshold}",
        f"fraction = {json.dumps(base.spill.fraction)}",
        f'victims = "{base.spill.victims}"',
        "[stream]",
        'start = "earliest"',
        "trigger_s = 0                   # as fast as it can",
        "[rebalance]",
        f'policy = "{base.rebalance.policy}"',
        "min_span_s = 4                  # a day of a minute: decide often",
        "collection_s = 5",
        "[spark]",
        f"master = {_quoted(base.spark.master)}",
    ]
    config = folder / "spillway.toml"
    config.write_text("\n".join(lines) + "\n")
    return load_settings(config, environ={})[0]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _free_name(folder: Path) -> Path:
    number = 1
    while (free := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    return free
