"""The stream's `/metrics`, for as long as the stream runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from spillway.metrics.gathering import Gatherer
from spillway.metrics.server import MetricsServer
from spillway.stream.run import Watcher
from spillway_schemas.settings import Settings


@contextmanager
def serving(settings: Settings, watcher: Watcher) -> Iterator[str | None]:
    """Serve what `watcher` is told where `metrics.listen` says; gives the address, None when off.

    Raises CannotListen before anything has begun.
    """
    if not settings.metrics.listen:
        yield None
        return
    gatherer = Gatherer(settings)
    server = MetricsServer(settings.metrics.listen, gatherer)
    watcher.on_start = _both(watcher.on_start, gatherer.on_start)
    watcher.on_epoch = _both(watcher.on_epoch, gatherer.on_epoch)
    try:
        server.start()
        yield server.url
    finally:
        server.close()
        gatherer.close()


def _both(first: Callable[[Any], None], second: Callable[[Any], None]) -> Callable[[Any], None]:
    def call(value: Any) -> None:
        first(value)
        second(value)

    return call
