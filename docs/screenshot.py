"""Takes the picture of the live page: `python -m docs.screenshot`. It needs Chromium, and takes a minute."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.fixtures.chromium import launched, until
from tests.fixtures.dashboards import ServedFleet

PICTURE = Path(__file__).parent / "images" / "dashboard.png"
NODES = 360
WARM_SECONDS = 240  # of simulated time, so that cards are as warm as they become


@contextmanager
def served() -> Iterator[str]:
    """The address of a fleet's page, which a thread serves."""
    fleet, address, ended = ServedFleet(NODES), "", threading.Event()
    for _ in range(WARM_SECONDS):
        fleet.step(1.0)
    ready = threading.Event()

    async def serve() -> None:
        nonlocal address
        async with fleet.serving() as address:
            ready.set()
            while not ended.is_set():
                await asyncio.sleep(0.5)
                fleet.step()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    try:
        yield address
    finally:
        ended.set()
        thread.join()


def take() -> None:
    """Write the picture."""
    with served() as address, sync_playwright() as playwright, launched(playwright) as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 860}, color_scheme="dark")
        page.goto(address)
        until(page, "performance.getEntriesByName('first picture').length")
        page.wait_for_timeout(30_000)  # for curves with a shape
        page.screenshot(path=PICTURE)


if __name__ == "__main__":
    take()
