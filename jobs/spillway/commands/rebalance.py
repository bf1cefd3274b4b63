"""`spillway rebalance`: decide by a policy, or ask for changes by hand."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from spillway.commands import given
from spillway.commands.given import AsJson
from spillway.commands.terminal import out, say_json, warn, who
from spillway_schemas.exits import FAILED


def rebalance(
    move: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GROUP:SLOT",
            help="Move a group, e.g. 9/17:1; of a tree's join abc: abc:9/17:1. May be repeated.",
        ),
    ] = None,
    spill: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SLOT:BYTES", help="Let a slot spill so much, e.g. 0:100MiB. May be repeated."
        ),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GROUP",
            help="Cut a group in two, e.g. 9/17, or abc:9/17 of a tree. May be repeated.",
        ),
    ] = None,
    merge: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GROUP",
            help="Merge the two halves of a range into one group, e.g. 9/17, or abc:9/17 of "
            "a tree. May be repeated.",
        ),
    ] = None,
    slots: Annotated[int | None, typer.Option(help="Change the number of slots to this.")] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SLOT:BYTES",
            help="Give a slot so much memory, e.g. 0:2GiB, until the stream is started again (to "
            "keep it, set state.budget_bytes); 0:default takes it back. May be repeated.",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Decide by this policy instead of rebalance.policy."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why. It is kept, even of a dry run.")] = "",
    by: Annotated[str | None, typer.Option(help="Who asks, when it is not this user.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Even out the slots by a policy, once; or move, split, merge, spill and resize by hand.

    With no option that says what to do, `rebalance.policy` decides. The stream obeys or refuses
    what is asked for at its next epoch.
    """
    from spillway.rebalance import controller
    from spillway.rebalance.asking import note
    from spillway.rebalance.by_hand import RebalanceRequest, request
    from spillway.rebalance.shown import as_json, table
    from spillway.report.running import waits_for_a_stream

    wanted = RebalanceRequest(
        move or (), spill or (), split or (), merge or (), slots, budget or ()
    )
    settings = given.settings()
    if policy is not None and wanted != RebalanceRequest():
        raise typer.BadParameter("--policy cannot be combined with changes by hand")
    declined: tuple[Any, ...] = ()
    if wanted == RebalanceRequest():
        chosen = policy or settings.rebalance.policy
        decision = controller.run(
            settings, chosen, by or who(), reason=reason, dry_run=dry_run, clock=given.clock
        )
        answers, declined = decision.asked, decision.advice.declined
    else:
        answers = request(settings, wanted, reason, by or who(), dry_run=dry_run, clock=given.clock)
    if reason and (dry_run or not any(outcome.obeyed for _, outcome in answers)):
        asked = [command.kind for command, _ in answers]
        note(
            settings,
            by or who(),
            reason,
            clock=given.clock,
            dry_run=dry_run,
            policy=policy,
            asked=asked,
        )
    if json_:
        say_json(as_json(answers, declined))
    else:
        out.print(table(answers, declined, dry_run=dry_run), highlight=False)
    if waits_for_a_stream(given.warehouse(settings)):
        warn("no stream runs here: this waits until 'spillway stream' is started again")
    if not all(outcome.obeyed for _, outcome in answers):
        raise typer.Exit(FAILED)
