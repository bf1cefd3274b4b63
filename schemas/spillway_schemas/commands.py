"""Lines of the `commands` table: what people, policies and the calendar ask the stream for.

A command is obeyed or refused once per `id`. One class a kind, told apart by `kind`:

* *Session commands* are about one session: `SealCommand` and `WithdrawCommand` say where it ends,
  `LossCommand` that input of it is gone for good.
* *Adaptation commands* change who holds which state: `MoveCommand`, `SlotsCommand`, `SplitCommand`,
  `MergeCommand`, `SpillCommand`, `BudgetCommand`. Those that were asked for together share their
  `decision`.

A line that this version cannot read is an `UnreadableCommand`. The stream refuses it, and goes on.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from spillway_schemas.journal import Move, Offsets, Prefix, Record

GREATEST = 2**63 - 1
"""Of offsets and of bytes: more fits into no table and into no message of Kafka."""


def _is_moment(text: str) -> str:
    if text and datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time needs a zone, such as 2026-01-05T15:00:00Z")
    return text


def _are_offsets(offsets: Offsets) -> Offsets:
    if any(not 0 <= each <= GREATEST for ends in offsets.values() for each in ends):
        raise ValueError(f"an offset is between 0 and {GREATEST}")
    return offsets


Moment = Annotated[str, AfterValidator(_is_moment)]
"""RFC 3339 with its zone, or empty. It is compared with others: by the stream, by whoever looks."""


class AnyCommand(Record):
    """What every command has."""

    id: Annotated[str, Field(min_length=1)]
    reason: str = ""
    by: str = ""
    issued_at: Moment = ""


class AnySessionCommand(AnyCommand):
    """What commands about a session have. Each is a decision of its own."""

    session: Annotated[str, Field(min_length=1)]

    @property
    def decision(self) -> str:
        """Its own id."""
        return self.id


class SealCommand(AnySessionCommand):
    """The session shall end."""

    kind: Literal["seal"] = "seal"
    at: str = "now"
    """`now`, `close` or an RFC 3339 time: how `offsets` were found, for people."""
    offsets: Annotated[Offsets, Field(default_factory=dict), AfterValidator(_are_offsets)]
    """Where the session ends."""


class WithdrawCommand(AnySessionCommand):
    """The session shall stay open after all."""

    kind: Literal["withdraw"] = "withdraw"
    seal: Annotated[str, Field(min_length=1)]
    """The id of the seal that is taken back. A later seal of the session stays."""


class LossCommand(AnySessionCommand):
    """The stream shall do without input that Kafka does not hold any more."""

    kind: Literal["accept-loss"] = "accept-loss"
    lost_to: Annotated[Offsets, Field(default_factory=dict), AfterValidator(_are_offsets)]
    """Where what is left begins, by partition; 0 where nothing is lost."""


class AnyAdaptationCommand(AnyCommand):
    """What adaptation commands have."""

    decision: Annotated[str, Field(min_length=1)]
    """The id of the decision that it is a part of."""
    assignment_version: int | None = None
    """The assignment that it was decided on; None: whichever there is."""
    epoch: int | None = None
    """The last epoch that a policy knew of when it decided; None: not kept."""
    expires_at: Moment = ""
    """From when on it is refused; empty: never."""
    policy: str = ""
    """Which policy decided; empty for a person."""
    settings: Annotated[dict[str, float | int | str], Field(default_factory=dict)]
    """The policy's settings, as they were."""


class MoveCommand(AnyAdaptationCommand):
    """A group shall change its slot."""

    kind: Literal["move"] = "move"
    move: Move


class SlotsCommand(AnyAdaptationCommand):
    """There shall be another number of slots."""

    kind: Literal["slots"] = "slots"
    slots: Annotated[int, Field(gt=0)]
    moves: Annotated[list[Move], Field(default_factory=list)]
    """All that bring the groups to `slots` slots, in order."""


class SplitCommand(AnyAdaptationCommand):
    """A group shall be cut in two."""

    kind: Literal["split"] = "split"
    group: Prefix


class MergeCommand(AnyAdaptationCommand):
    """Two halves of a range shall become one group."""

    kind: Literal["merge"] = "merge"
    group: Prefix
    """The range."""


class SpillCommand(AnyAdaptationCommand):
    """A slot shall spill."""

    kind: Literal["spill"] = "spill"
    slot: int
    bytes: Annotated[int, Field(gt=0, le=GREATEST)]
    """How much state, at least."""


class BudgetCommand(AnyAdaptationCommand):
    """A slot shall get another budget."""

    kind: Literal["budget"] = "budget"
    slot: int
    bytes: Annotated[int, Field(ge=0, le=GREATEST)] = 0
    """The new one; 0 for `state.budget_bytes`."""


class UnreadableCommand(AnyCommand):
    """A line that another version wrote, or that is damaged."""

    kind: Literal["unreadable"] = "unreadable"
    problem: str

    @property
    def decision(self) -> str:
        """Its own id."""
        return self.id


EndCommand = SealCommand | WithdrawCommand
"""What says where a session ends."""
SessionCommand = EndCommand | LossCommand
AdaptationCommand = (
    MoveCommand | SlotsCommand | SplitCommand | MergeCommand | SpillCommand | BudgetCommand
)
Command = SessionCommand | AdaptationCommand
"""What may be asked for."""
CommandLine = Command | UnreadableCommand
"""What a line of the table may be."""

SESSION_KINDS = frozenset(each.model_fields["kind"].default for each in get_args(SessionCommand))
"""Kinds of commands that are about one session."""

COMMAND: TypeAdapter[Command] = TypeAdapter(Annotated[Command, Field(discriminator="kind")])
"""Validates a command."""
ADAPTATION: TypeAdapter[AdaptationCommand] = TypeAdapter(
    Annotated[AdaptationCommand, Field(discriminator="kind")]
)
"""Validates an adaptation command."""


def command_from(text: str, n: int) -> CommandLine:
    """The command of line `n`, whose JSON is `text`. Never raises."""
    try:
        return COMMAND.validate_json(text)
    except ValidationError as error:
        return UnreadableCommand(
            id=_id(text) or f"line {n}",
            problem=(
                f"line {n} of the commands table is none that this version knows: "
                f"{first_problem(error)}. Another version of spillway may have written it: "
                "ask again with this one"
            ),
        )


def _id(text: str) -> str:
    """The id of what is no command, where it has one."""
    try:
        found = from_json(text)
    except ValueError:
        return ""
    id_ = found.get("id") if isinstance(found, dict) else None
    return id_ if isinstance(id_, str) else ""


def first_problem(error: ValidationError) -> str:
    """What is wrong with a record, in a line; values are not repeated."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]
