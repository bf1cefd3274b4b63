"""The port that the stream serves its figures on."""

from __future__ import annotations

from collections.abc import Iterator

from spillway.doctor.check import Check
from spillway.metrics.server import CannotListen, can_listen, serves_spillway
from spillway_schemas.settings import Settings


def metrics(settings: Settings) -> Iterator[Check]:
    """Whether `metrics.listen` can be listened on, or is by a stream that runs."""
    listen = settings.metrics.listen
    if not listen:
        yield Check("metrics", "ok", "not served (metrics.listen is empty)")
    elif serves_spillway(listen):
        yield Check("metrics", "ok", f"a stream that runs serves them at {listen}")
    else:
        try:
            can_listen(listen)
        except CannotListen as error:
            yield Check("metrics", "fail", error.what, error.mend)
        else:
            yield Check("metrics", "ok", f"can be served at {listen}")
