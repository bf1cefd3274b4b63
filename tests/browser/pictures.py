"""Pictures of the page for the docs, from an Airflow that runs: dark and light.

python -m tests.browser.pictures http://127.0.0.1:8080 admin PASSWORD docs/pictures
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.browser.chromium import chromium, open_airflow, open_view

DRAWN_MS = 1_500
"""Charts take a moment to be drawn."""


def take(url: str, user: str, password: str, folder: Path) -> list[Path]:
    """One picture of each view and theme."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    with chromium() as browser:
        for theme in ("light", "dark"):
            page = open_airflow(browser, url, user, password, theme=theme)
            for view in ("overview", "groups", "decisions", "sessions"):
                frame = open_view(page, url, f"#{view}")
                page.wait_for_timeout(DRAWN_MS)
                if view == "groups":
                    frame.locator(".map .cell").nth(320).hover()
                if view == "sessions":  # of the day that is over
                    frame.locator("tbody tr").last.locator("a").first.click()
                    page.wait_for_timeout(DRAWN_MS)
                taken.append(folder / f"page-{view}-{theme}.png")
                page.screenshot(path=taken[-1])
            page.context.close()
    return taken


if __name__ == "__main__":
    for path in take(*sys.argv[1:4], Path(sys.argv[4])):
        print(path)
