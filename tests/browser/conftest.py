"""A Chromium for the tests of how the page looks, and a window in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import PATIENCE_MS, chromium, program
from tests.missing import without


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if program() is None:
        without("Chromium", "install it, or name it with SPILLWAY_CHROMIUM")
    expect.set_options(timeout=PATIENCE_MS)
    with chromium() as found:
        yield found


@pytest.fixture
def window(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(PATIENCE_MS)
    yield page
    page.close()
