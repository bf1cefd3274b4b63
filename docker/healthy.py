"""A health check over HTTP: `healthy.py URL [PART]` ends with 0 when the URL answers with 200.

With a PART, the answer is Airflow's `/monitor/health`, and that part of it must be healthy.
"""

from __future__ import annotations

import json
import sys
import urllib.request

PATIENCE_S = 8.0


def healthy(url: str, part: str | None = None) -> bool:
    """Whether it answers, and says that the part is healthy."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            if part is None:
                return True
            found = json.load(answer)
    except (OSError, ValueError) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return False
    status = found.get(part, {}).get("status")
    if status != "healthy":
        print(f"{url}: {part} is {status}", file=sys.stderr)
    return bool(status == "healthy")


if __name__ == "__main__":
    sys.exit(0 if healthy(*sys.argv[1:3]) else 1)
