"""How much of a property each lane tries: a little in `make check`, more in `make test`, and where
that takes long, most in `make soak`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings


def lanes(fast: int, every: int, soak: int | None = None) -> pytest.MarkDecorator:
    """A parameter `examples`: `fast` in the fast lane, which are others each time (with `CI` set
    always the same), `every` beside the tests with servers, `soak` in `make soak` alone."""
    numbers = [fast, pytest.param(every, marks=pytest.mark.server)]
    if soak is not None:
        numbers.append(pytest.param(soak, marks=pytest.mark.soak))
    return pytest.mark.parametrize("examples", numbers)


def on_every_store(others: pytest.MarkDecorator = pytest.mark.server) -> pytest.MarkDecorator:
    """A parameter for the fixture `store`: S3 in the lane of the test, the others where it says."""
    names = ["s3", *(pytest.param(name, marks=others) for name in ("azure", "gcs"))]
    return pytest.mark.parametrize("store", names, indirect=True)


def parts(every: int, soak: int) -> list[Any]:
    """Numbers of parts of a campaign: the first `every` run beside the tests with servers, the
    others in `make soak` alone."""
    marks = [pytest.mark.server] * every + [pytest.mark.soak] * soak
    return [pytest.param(part, marks=mark) for part, mark in enumerate(marks)]


def explored(
    fast: int,
    every: int,
    *strategies: Any,
    soak: int | None = None,
    suppressed: Collection[HealthCheck] = (),
    **named: Any,
) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """A property as a test of all lanes: with `@given`, `@settings` and these numbers of examples,
    however long one takes.

    Explicit `@example`s of the property are tried in each.
    """

    def wrap(holds: Callable[..., None]) -> Callable[[int], None]:
        def test(examples: int) -> None:
            limits = settings(
                max_examples=examples, deadline=None, suppress_health_check=suppressed
            )
            limits(given(*strategies, **named)(holds))()

        # Not its signature: pytest would look for what the strategies give.
        test.__name__, test.__doc__ = holds.__name__, holds.__doc__
        return lanes(fast, every, soak)(test)

    return wrap
