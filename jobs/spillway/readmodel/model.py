"""The journal's state and its sums after one entry, and how they are kept.

Model: `add` folds one entry into both. `JournalState` is the protocol's fold, so whoever asks for
an adaptation is judged by the very state that the stream will judge by.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from spillway.policy.sampling import Sample, owned, sample_of
from spillway.protocol.snapshot import snapshot_of, state_of, text_digest
from spillway.protocol.state import JournalState, begin, fold
from spillway.readmodel.tally import Tally
from spillway_schemas.journal import Claim, Epoch, EpochHead, Genesis, Record
from spillway_schemas.snapshot import JournalSnapshot

FORMAT: Literal[11] = 11
"""Raised when `Tally` gets other fields, or sums up the same entries otherwise."""


class KeptReadModel(Record):
    """A read model as it is kept. Of another format it is ignored, and made again."""

    format: Literal[11] = FORMAT
    journal: JournalSnapshot
    tally: Tally

    @property
    def n(self) -> int:
        """The last entry in it."""
        return self.journal.n


@dataclass
class ReadModel:
    """What follows from entries 0 to `state.n`."""

    state: JournalState
    tally: Tally
    entry: str
    """`text_digest` of entry `state.n`."""

    @classmethod
    def of(cls, text: str, genesis: Genesis) -> ReadModel:
        """After entry 0."""
        return cls(begin(genesis), Tally.of(genesis), text_digest(text))

    @classmethod
    def restored(cls, kept: KeptReadModel) -> ReadModel:
        """The inverse of `kept`. It goes on with what is given, which must not be used again."""
        return cls(state_of(kept.journal), kept.tally, kept.journal.entry)

    def kept(self) -> KeptReadModel:
        """As it is kept; changes with what is added, so write it at once."""
        return KeptReadModel(journal=snapshot_of(self.state, self.entry), tally=self.tally)

    def add(self, text: str, entry: Genesis | Claim | Epoch | EpochHead) -> None:
        """Fold the next entry; `text`: of its head. Raises `JournalBroken` for another one."""
        before = self.state
        self.state = fold(before, entry)
        if isinstance(entry, Claim):
            self.tally.claimed(entry)
        elif isinstance(entry, (Epoch, EpochHead)):
            self.tally.add(before, entry, self.state)
        self.entry = text_digest(text)

    @property
    def session(self) -> str:
        """The open session's date."""
        return self.state.session.date

    @property
    def partitions(self) -> dict[str, int]:
        """Of each topic."""
        return {topic.name: topic.partitions for topic in self.state.topics}

    def sample(self, seconds: float) -> Sample:
        """What the slots of the assignment did in the last `seconds` of epochs.

        Where a clock was put back, epochs before that are left out: they end in the future.
        """
        recent = self.tally.recent
        now_ms = recent[-1].ended_ms if recent else 0
        begin_ms = now_ms - seconds * 1000
        last = list(takewhile(lambda each: begin_ms < each.ended_ms <= now_ms, reversed(recent)))
        return sample_of(last[::-1], owned(self.state.groups, len(self.state.slots)))
