"""A real Chromium, headless, with nothing that talks to anybody but the page."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

from playwright.sync_api import Browser, FrameLocator, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
PATIENCE_MS = 20_000
SHOWN = "main .view:visible, main .nothing:not([data-problem=looking])"
"""What there is once the page has looked at the tables."""


def program() -> str | None:
    """Where Chromium is: `SPILLWAY_CHROMIUM`, or in the path; None when it is not."""
    named = os.environ.get("SPILLWAY_CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start it, and end it."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def open_airflow(
    browser: Browser,
    url: str,
    user: str,
    password: str,
    *,
    theme: str = "light",
    width: int = 1440,
    height: int = 900,
) -> Page:
    """A window of its own, logged in to Airflow."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if theme == "dark" else "light",
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(f"{url}/auth/login")
    page.fill("input[name=username]", user)
    page.fill("input[name=password]", password)
    page.click("button[type=submit]")
    page.wait_for_url(lambda where: "/auth/login" not in where)
    return page


def open_view(page: Page, url: str, view: str = "") -> FrameLocator:
    """Spillway's page in Airflow's navigation: a view such as `#groups`."""
    page.goto(f"{url}/plugin/spillway" + (f"/spillway/{view}" if view else ""))
    frame = page.frame_locator("iframe")
    frame.locator(SHOWN).first.wait_for()
    return frame
