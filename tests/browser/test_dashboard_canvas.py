"""The canvas as a person moves it: wheel, pointer and keys; and what is asked for while only a part is in view."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Browser, Page, Request, expect

from tests.fixtures.chromium import until
from tests.fixtures.local_site import SitePage
from tests.fixtures.served_pools import ServedPools


class Canvas:
    """The canvas of a page, with the pointer in its middle."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.asked: list[str] = []  # blocks of each stream
        page.on("request", self._heard)
        until(page, "performance.getEntriesByName('first picture').length")
        self.enter()

    def _heard(self, request: Request) -> None:
        url = urlsplit(request.url)
        if url.path == "/api/v1/stream":
            self.asked.append(parse_qs(url.query, keep_blank_values=True)["blocks"][0])

    def enter(self) -> None:
        box = self.page.locator("#cells").bounding_box()
        assert box is not None
        self.x, self.y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.page.mouse.move(self.x - 1, self.y)
        self.page.mouse.move(self.x, self.y)

    def zoom_in(self) -> None:
        for _ in range(4):
            self.page.mouse.wheel(0, -200)

    def nearest(self) -> str:
        """The name of a GPU near the middle: the pointer looks for it, as there is room between nodes."""
        tip = self.page.locator(".tip b")
        for step in range(40):
            self.page.mouse.move(self.x + 4 * step, self.y + 3 * step)
            if tip.is_visible():
                return tip.inner_text()
        raise AssertionError("no GPU near the middle")

    def drag(self, across: int, down: int) -> None:
        self.page.mouse.move(self.x, self.y)
        self.page.mouse.down()
        self.page.mouse.move(self.x + across, self.y + down, steps=5)
        self.page.mouse.up()

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, self.asked
            self.page.wait_for_timeout(20)

    def until_asked(self, *, part: bool) -> None:
        """Wait until a part of the blocks, or all of them, is asked for."""
        self.until(lambda: bool(self.asked) and bool(self.asked[-1]) == part)

    def blocks(self) -> int:
        """How many blocks were asked for last; 0 for all of them."""
        return int(self.asked[-1] or "0", 16).bit_count() if self.asked else 0


def test_zoom_and_pan_show_another_part_and_only_that_is_asked_for(browser: Browser, pools: ServedPools) -> None:
    with SitePage(browser, pools.url, color_scheme="dark") as shown:
        canvas = Canvas(shown.open())
        page = canvas.page
        canvas.zoom_in()
        canvas.until(lambda: 0 < canvas.blocks() < 18)  # of 35; more while it still zooms
        first = canvas.nearest()
        shown.keep("zoomed-dark")
        before = len(canvas.asked)
        for _ in range(3):
            canvas.drag(-400, -220)
        page.mouse.move(canvas.x, canvas.y)
        assert canvas.nearest() != first
        expect(page).to_have_url(re.compile(r"/$"))  # a drag is no click
        canvas.until(lambda: len(canvas.asked) > before)
        assert canvas.asked[-1] != canvas.asked[before - 1]
        page.set_viewport_size({"width": 1180, "height": 700})  # what is looked at stays in the middle
        page.locator("input[value=power]").check(force=True)
        expect(page.locator(".scale")).to_contain_text("of limit")
        assert canvas.asked[-1]
        page.locator("#cells").focus()
        page.keyboard.press("0")
        canvas.until_asked(part=False)
        page.keyboard.press("+")
        page.keyboard.press("+")
        page.keyboard.press("+")
        canvas.until_asked(part=True)
        page.get_by_role("button", name="Show everything").click()
        canvas.until_asked(part=False)
        expect(page.locator("#state")).to_have_text("live")


def test_two_fingers_zoom_and_what_is_found_is_counted(browser: Browser, pools: ServedPools) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
    with SitePage(browser, pools.url, **phone) as shown:
        canvas = Canvas(shown.open())
        session = canvas.page.context.new_cdp_session(canvas.page)

        def touch(kind: str, *far: float) -> None:
            points = [{"x": canvas.x + side * far[0], "y": canvas.y, "id": side} for side in (-1, 1)] if far else []
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

        touch("touchStart", 20)
        for far in range(20, 160, 10):
            touch("touchMove", far)
        touch("touchEnd")
        canvas.until_asked(part=True)
        canvas.page.locator("#search").fill("inference-0006")
        expect(canvas.page.locator(".found")).to_have_text("4 GPUs match")
        canvas.page.locator("#search").fill("nowhere")
        expect(canvas.page.locator(".found")).to_have_text("nothing matches")
