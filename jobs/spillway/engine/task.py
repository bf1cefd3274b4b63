"""What the plan says to one slot for one epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import SecretBytes

from spillway.engine.groups import GroupMap
from spillway.engine.intake import PIECE_BYTES
from spillway.engine.join.batches import BATCH_BYTES
from spillway.engine.replay import SessionReplay
from spillway.engine.state.merging import DEFAULT_SHAPE, Shape
from spillway.policy.forecast import Forecast
from spillway.policy.sampling import SlotFigures
from spillway.policy.victims import DEFAULT_VICTIMS
from spillway_schemas.filenames import data_name
from spillway_schemas.journal import Prefix, TracedGroup

DEAD_IN_HEADROOM = 0.2
"""Of what the threshold leaves free so much may be dead rows that wait in their files."""
LEAST_DEAD_SHARE = 0.025
"""Of a file that is trimmed: small spills would have all files copied for a few rows of each."""


@dataclass(frozen=True)
class StepTask:
    """Everything that the plan says to one slot. Picklable."""

    slot: int
    epoch: int
    attempt: str
    """Fresh for every try: part of every file's name. Begins with the job's turn."""
    warehouse_id: str
    session: str
    """The open session."""
    manifest: str | None
    """The slot's state after the epoch before; None: a new or lost slot, starts empty."""
    groups: GroupMap
    """The assignment from this epoch on."""
    key: SecretBytes
    """The warehouse's key for the digests of state files. It shows in no text of this task."""
    threshold: float
    """Part of the budget at which the slot spills (`spill.threshold`)."""
    leaving: tuple[Prefix, ...] = ()
    """Ranges of this slot that move away in this epoch."""
    arriving: tuple[int, ...] = ()
    """Slots that ranges come from in this epoch: each must say what it gave."""
    replays: Mapping[str, SessionReplay] = field(default_factory=dict)
    """Sessions of which joins below the root make again what they gave, for slots that lost it."""
    forced_bytes: int = 0
    """State to spill whatever the memory."""
    flush: Mapping[str, tuple[Prefix, ...]] = field(default_factory=dict)
    """Sessions that this epoch seals, each with the ranges that become its last generation."""
    expired_by: Mapping[str, int] = field(default_factory=dict)
    """Of a query with windows: per session the watermark by which its rows expire, if there is
    one."""
    reach: Mapping[str, Sequence[tuple[Prefix, int]]] = field(default_factory=dict)
    """Likewise: the ranges that were ever spilled, with the greatest time of what was."""
    budget_bytes: int = 1 << 30
    fraction: float = 0.05
    inactive_ms: int = 60_000
    victims: str = DEFAULT_VICTIMS
    reactivation: str = "off"
    """Policy by which spilled generations come back (`spillway.policy.reactivation`)."""
    may_return: bool = True
    """Whether any may in this epoch. What is spilled meanwhile may come back in a later one."""
    left_ms: Mapping[str, float] = field(default_factory=dict)
    """Per session how long it goes on by the stream's clock, where that is known."""
    forecasts: Mapping[str, Forecast] = field(default_factory=dict)
    """Per session what one before says of all groups, where there is one."""
    now_ms: int = 0
    """The stream's clock."""
    written_at_us: int = 0
    """The commit time that the epoch's rows are stamped with, us since 1970."""
    statistics: bool = False
    """Write the statistics of all groups in this epoch (they are when something is spilled)."""
    recent: SlotFigures | None = None
    """What the slot did since its statistics were last written; None: not known."""
    seed: int = 0
    traces: bool = False
    """Whether it is counted through which groups results came (the policy asks for it)."""
    trace_most: int = 0
    """So many results of a batch are drawn for that; 0: all of them."""
    traced: Mapping[str, Sequence[TracedGroup]] = field(default_factory=dict)
    """Per session, what other slots have counted since for groups of this one (and others)."""
    batch_bytes: int = BATCH_BYTES
    piece_bytes: int = PIECE_BYTES
    shape: Shape = DEFAULT_SHAPE

    @property
    def shape_kept(self) -> Shape:
        """`shape`, by which what a spill or two of `fraction` have worn is worth trimming, and
        dead rows wait as far as the threshold leaves room for them."""
        worn = max(self.fraction / 2, LEAST_DEAD_SHARE)
        waiting = DEAD_IN_HEADROOM * (1 - self.threshold)
        return replace(
            self.shape,
            dead_share=min(self.shape.dead_share, worn),
            dead_in_budget=min(self.shape.dead_in_budget, waiting),
        )

    @property
    def born_before(self) -> int:
        """Files born later than this are garbage only where an earlier job wrote them."""
        return self.epoch - 1

    def sample_seed(self, join: int, session: str, batch: int) -> tuple[int, ...]:
        """The seed by which results of one batch of a join are drawn: no other batch has it."""
        day = int.from_bytes(session.encode())
        return (self.seed, self.slot, join, batch, day)

    def file_name(self, k: int) -> str:
        """Name of data file number `k` of a table."""
        return data_name(self.epoch, self.attempt, self.slot, k)
