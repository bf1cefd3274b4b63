"""One line a step: what `spillway relay` prints while it runs."""

from __future__ import annotations

from spillway.relay.kept import RelayPosition
from spillway.relay.run import Relayed
from spillway.report.words import span_text, times_text


def begin_line(topic: str, kept: RelayPosition) -> str:
    """The line at the start."""
    if not kept.rows and kept.position.epoch < 0:
        return f"topic {topic}: begins with the first result"
    return (
        f"topic {topic}: goes on after epoch {kept.position.epoch}, "
        f"{times_text(kept.rows, 'row')} relayed so far"
    )


def step_line(done: Relayed) -> str:
    """The line of a step that is in the topic."""
    step = done.step
    if step.phase == "run-time":
        first = step.after + 1
        what = f"epoch {first}" if first == step.upto else f"epochs {first} to {step.upto}"
    else:
        what = f"{step.phase} of {step.session}"
    part = f", part {step.part + 1} of {step.parts}" if step.parts > 1 else ""
    return (
        f"{what}{part}: {times_text(done.rows, 'row')} | {done.total:,} in all | "
        f"{span_text(done.seconds)}"
    )
