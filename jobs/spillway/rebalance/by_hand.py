"""`spillway rebalance --move ... --slots ... --budget ...`: what a person wants, as commands."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ByteSize, TypeAdapter, ValidationError

from spillway.clock import Clock
from spillway.engine.least import TOO_SMALL, least_budget
from spillway.policy.slots import rearranged
from spillway.readmodel.groups import GroupStates, group_states
from spillway.readmodel.model import ReadModel
from spillway.rebalance.asking import Answers, RequestRefused, WarehouseLook, ask, look
from spillway.report.words import bytes_text
from spillway_schemas.commands import ADAPTATION, GREATEST, AdaptationCommand, BudgetCommand
from spillway_schemas.hash_space import group_of, group_text, spaces
from spillway_schemas.journal import Move, Prefix
from spillway_schemas.settings import Settings

MOST_DIGITS = 9
"""Of a slot's number."""


@dataclass(frozen=True)
class RebalanceRequest:
    """The options as they were written."""

    moves: Sequence[str] = ()
    """`DEPTH/VALUE:SLOT`; in a tree of joins groups are `JOIN:DEPTH/VALUE`."""
    spills: Sequence[str] = ()
    """`SLOT:BYTES`."""
    splits: Sequence[str] = ()
    """`DEPTH/VALUE`."""
    merges: Sequence[str] = ()
    """`DEPTH/VALUE` of the range whose halves become one group."""
    slots: int | None = None
    budgets: Sequence[str] = ()
    """`SLOT:BYTES`, or `SLOT:default` for `state.budget_bytes`."""


def request(
    settings: Settings,
    wanted: RebalanceRequest,
    reason: str,
    by: str,
    *,
    clock: Clock,
    dry_run: bool = False,
) -> Answers:
    """Ask for what is wanted, as `asking.ask` does.

    Raises `RequestRefused`, and what `asking.look` raises; for budgets also QueryError, where
    neither the journal nor the settings' file has the query.
    """
    seen = look(settings, clock=clock)
    found = group_states(seen.warehouse, seen.model, collection_s=0.0)
    sizes = {g: int(n) for (g, _), n in zip(seen.model.state.groups, found.bytes, strict=True)}
    commands = _commands(seen, sizes, wanted, reason, by)
    _refuse_undivided(wanted, seen.model, found)
    _refuse_too_small(commands, seen, settings)
    return ask(seen, commands, dry_run=dry_run)


def _refuse_undivided(wanted: RebalanceRequest, model: ReadModel, found: GroupStates) -> None:
    """A split of a group of one key divides nothing: it would only look like an answer."""
    at = {group: g for g, (group, _) in enumerate(model.state.groups)}
    for text in wanted.splits:
        g = at.get(_group(text, model.state.genesis.joins))
        if g is not None and found.hot_share[g] >= 1:
            share = found.bytes[g] / max(int(found.bytes.sum()), 1)
            raise RequestRefused(
                f"all rows of group {text} are of the key {found.hot_key[g]!r}, which no split "
                f"divides; the group has {share:.0%} of all memory"
            )


def _refuse_too_small(
    commands: Sequence[AdaptationCommand], seen: WarehouseLook, settings: Settings
) -> None:
    """A budget that no epoch fits into would spill every row; `stream` refuses it as well."""
    budgets = [each.bytes for each in commands if isinstance(each, BudgetCommand) and each.bytes]
    if not budgets:
        return
    groups = seen.model.state.groups
    least = least_budget(
        seen.query(settings).joined_inputs,
        len(groups),
        len({slot for _, slot in groups}),
        settings.stream.max_rows_per_epoch,
    )
    for size in budgets:
        if size < least:
            raise RequestRefused(
                f"a budget of {bytes_text(size)} {TOO_SMALL}. The least that would do is "
                f"{-(-least // 1024)}KiB; whatever shall stay in memory needs more"
            )


def _commands(
    seen: WarehouseLook, sizes: dict[Prefix, int], wanted: RebalanceRequest, reason: str, by: str
) -> list[AdaptationCommand]:
    state = seen.model.state
    joins = state.genesis.joins
    decision = f"by-hand/{uuid.uuid4().hex[:8]}"
    found: list[AdaptationCommand] = []

    def add(kind: str, **what: object) -> None:
        common = {
            "id": f"{decision}/{len(found)}",
            "decision": decision,
            "kind": kind,
            "assignment_version": state.assignment_version,
            "reason": reason,
            "by": by,
            "issued_at": seen.at(),
        }
        found.append(ADAPTATION.validate_python({**common, **what}))

    for text in wanted.splits:
        add("split", group=_group(text, joins))
    for text in wanted.merges:
        add("merge", group=_group(text, joins))
    for text in wanted.moves:
        name, slot = _pair(text, f"--move {_example(joins)}:1")
        to, group = _number(slot, text), _group(name, joins)
        move = Move(group=group, to=to, bytes=sizes.get(group, 0))
        add("move", move=move)
    for text in wanted.spills:
        slot, size = _pair(text, "--spill 0:100MiB")
        add("spill", slot=_number(slot, text), bytes=_bytes(size, text))
    if wanted.slots is not None:
        try:
            moves = rearranged(state.groups, sizes, wanted.slots)
        except ValueError as error:
            raise RequestRefused(str(error)) from None
        add("slots", slots=wanted.slots, moves=moves)
    for text in wanted.budgets:
        slot, size = _pair(text, "--budget 0:2GiB")
        bytes_ = 0 if size == "default" else _bytes(size, text)
        add("budget", slot=_number(slot, text), bytes=bytes_)
    return found


def _pair(text: str, example: str) -> tuple[str, str]:
    left, colon, right = text.rpartition(":")
    if not colon:
        raise RequestRefused(f"{text!r}: write, for example, {example}")
    return left, right


def _example(joins: Sequence[str]) -> str:
    return group_text(spaces(len(joins))[0].part(Prefix(9, 17)), joins)


def _group(text: str, joins: Sequence[str]) -> Prefix:
    try:
        return group_of(text, joins)
    except ValueError as error:
        raise RequestRefused(str(error)) from None


def _number(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS):
        raise RequestRefused(f"{whole!r:.60}: {text!r:.40} is not a slot number")
    return int(text)


def _bytes(text: str, whole: str) -> int:
    try:
        size = TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        raise RequestRefused(f"{whole!r}: {text!r} is not a size such as 100MiB") from None
    if size <= 0:
        raise RequestRefused(f"{whole!r}: {text!r} is not above zero")
    if size > GREATEST:
        raise RequestRefused(f"{whole!r}: {text!r} is more than any slot can hold")
    return int(size)
