"""`spillway setup`: what a package index does not hold."""

from __future__ import annotations

import typer


def setup() -> None:
    """Fetch and verify the jars that Spark and the embedded broker need.

    A second run has nothing to do.
    """
    from spillway import jars
    from spillway.stream import archive

    if code := jars.main():
        raise typer.Exit(code)
    archive.ensure()
