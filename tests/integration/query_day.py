"""A day of one of several queries of a settings file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.day import Day, JournalReader


@dataclass
class QueryDay(Day):
    """A day of one query of the settings file that lies in `folder`."""

    name: str = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        (self.folder / "query.toml").rename(self.folder / f"{self.name}.toml")
        self.journal = JournalReader(self.warehouse() / "journal")

    def env(self) -> dict[str, str]:
        """What is said of all queries; which one it is, stands before each command."""
        every = super().env()
        del every["SPILLWAY_QUERY"]
        return every

    def warehouse(self) -> Path:
        """The folder of this query's tables; of a store's what is there now is copied to it."""
        place = f"queries/{self.name}"
        here = self.folder / "warehouse" / place
        if self.store is not None:
            self.store.copied(f"{self.folder.name}/{place}", here)
        return here

    def slots_of_state(self) -> set[str]:
        """Of every warehouse that has state in this query's folder."""
        return {each.name for each in self.slot_folders()}

    def slot_folders(self) -> list[Path]:
        """The folders of its slots' state."""
        return sorted((self.state / "queries" / self.name).glob("*/slot-*"))
