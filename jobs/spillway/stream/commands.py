"""What waits to be answered: commands of the table, and the calendar's own seal."""

from __future__ import annotations

from collections.abc import Iterable

from spillway.clock import Clock
from spillway.kafka.client import cluster
from spillway.protocol.plan import unseen
from spillway.protocol.state import JournalState
from spillway.stream.boundary import due_close
from spillway.tables.events import Commands
from spillway_schemas.commands import CommandLine, LossCommand, SealCommand
from spillway_schemas.settings import Settings


class CommandSource:
    """Reads each command once, and keeps it until the journal has seen it."""

    def __init__(
        self, settings: Settings, table: Commands, topics: Iterable[str], clock: Clock
    ) -> None:
        """`clock`: the exchange's time, by which sessions end."""
        self._session, self._kafka = settings.session, settings.kafka
        self._table = table
        self._topics = sorted(set(topics))
        self._clock = clock
        self._read_n: int | None = None
        self._pending: list[CommandLine] = []
        self._held_back = False

    @property
    def read_n(self) -> int:
        """The number up to which all commands were given at the last call of `waiting`; -1: none is
        known."""
        assert self._read_n is not None, "nothing was asked for yet"
        return -1 if self._held_back else self._read_n

    def loss_waits(self, state: JournalState) -> bool:
        """Whether the last call of `waiting` has seen a loss that waits to be answered."""
        return any(isinstance(each, LossCommand) for each in unseen(state, self._pending))

    def waiting(self, state: JournalState, *, losses: bool = False) -> list[CommandLine]:
        """The commands that the journal has not seen, and the calendar's seal when it is due.

        `losses`: no query runs, and the epoch joins no rows. Then losses that people accept are
        among them, after which reading goes on elsewhere, and the calendar's seal is not; otherwise
        they are held back.

        Raises `KafkaUnavailable` when that seal is due: a batch must not be joined without it, for
        rows of the evening would become the day's.
        """
        if self._read_n is None:  # what no driver has answered
            fresh, self._read_n = self._table.unanswered(state)
        else:
            fresh = self._table.read(self._read_n)
            self._read_n = fresh[-1].n if fresh else self._read_n
        self._pending += [each.command for each in fresh]
        self._pending = unseen(state, self._pending)
        self._held_back = not losses and self.loss_waits(state)
        if losses:
            return list(self._pending)
        given: list[CommandLine]
        given = [c for c in self._pending if not isinstance(c, LossCommand)]
        if self._session.boundary != "calendar":
            return given
        return [*given, *self._calendar_seal(state)]

    def _calendar_seal(self, state: JournalState) -> list[SealCommand]:
        """The calendar's own end of the open session, once close and grace have passed."""
        given = self._session
        due = due_close(state, self._pending, given.days, given.grace_s, self._clock())
        if due is None:
            return []
        with cluster(self._kafka.bootstrap_servers, self._kafka.options) as view:
            return [due.seal(view.offsets_for_time(self._topics, due.at_ms))]
