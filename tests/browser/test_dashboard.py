"""The live page as a person sees it, with a real cluster behind it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.fixtures import agent_page as agents
from tests.fixtures.chromium import until
from tests.fixtures.local_site import LocalSite, SitePage
from tests.fixtures.served_pools import ServedPools

MARKUP = "<img src=x onerror=alert(1)><b>x</b>"
NO_READING = "\N{EN DASH}"
BRIGHT = """() => {
  const canvas = document.getElementById("cells");
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let at = 0; at < data.length; at += 4) found += data[at] > 220 && data[at + 1] > 200 && data[at + 2] < 120;
  return found;
}"""  # how many pixels have the colour of a GPU at work


def tile(label: str) -> str:
    """The selector of a total."""
    return f".tile:has-text('{label}') b"


def test_a_pod_that_starts_turns_its_cell_and_the_totals(browser: Browser, site: LocalSite) -> None:
    with SitePage(browser, site.url, color_scheme="dark") as shown:
        page = shown.open()
        expect(page.locator(tile("GPUs busy"))).to_have_text("0", timeout=30_000)
        until(page, "performance.getEntriesByName('first picture').length")
        until(page, f"({BRIGHT})() === 0")
        with site.pod("turns", 8):
            expect(page.locator(tile("Allocated"))).to_have_text("8", timeout=30_000)
            expect(page.locator(tile("GPUs busy"))).to_have_text("8", timeout=30_000)
            page.locator("input[value=owner]").check(force=True)
            expect(page.locator(".scale")).to_contain_text("default")
            page.locator("input[value=utilization]").check(force=True)
            expect(page.locator(".scale")).to_contain_text("100 %")
            until(page, f"({BRIGHT})() > 8 * 200")  # eight cells, with a number on each
            shown.check_width()
            shown.check_accessible()
            shown.keep("fleet-dark")


def test_pods_are_listed_with_what_they_have_or_why_they_wait_and_are_found(browser: Browser, site: LocalSite) -> None:
    with (
        site.pod("works", 2, 50),
        site.pod("waits", 9),
        SitePage(browser, site.url, color_scheme="light") as shown,
    ):
        page = shown.open("#/pods")
        waiting = page.locator("tr", has_text="waits")
        expect(waiting).to_contain_text("Pending", timeout=30_000)
        expect(waiting).to_contain_text("Insufficient nvidia.com/gpu", timeout=30_000)
        expect(page.locator("tr", has_text="works")).to_contain_text("Running", timeout=30_000)
        shown.check_width()
        shown.check_accessible()
        shown.keep("pods-light")
        page.locator("select[aria-label=Phase]").select_option("Pending")
        expect(page.locator("tr", has_text="works")).to_have_count(0)
        page = shown.open("#/")
        page.locator("#search").fill("works")
        expect(page.locator("#hits li").first).to_contain_text("default/works", timeout=30_000)
        page.keyboard.press("Escape")
        expect(page.locator("#hits")).to_be_hidden()


def test_the_keyboard_leads_from_search_to_a_node_and_from_the_canvas_to_a_gpu(
    browser: Browser, site: LocalSite
) -> None:
    with SitePage(browser, site.url, color_scheme="light") as shown:
        page = shown.open("#/nodes")
        node = page.locator("tbody th a").first.inner_text()
        shown.check_accessible()
        shown.keep("nodes-light")
        page.keyboard.press("/")
        page.keyboard.type(node)
        expect(page.locator("#hits li").first).to_contain_text(node)
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text(node)
        expect(page.locator(".card")).to_have_count(8)
        expect(page.locator(".ring circle")).to_have_count(8)
        shown.check_accessible()
        shown.keep("node-light")
        page = shown.open("#/")
        until(page, "performance.getEntriesByName('first picture').length")
        page.locator("#cells").focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        expect(page.locator("[aria-live=polite]")).to_contain_text("GPU 1,")
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_have_text("GPU 1")
        expect(page.locator(".chart")).to_have_count(6)
        until(page, "document.querySelector('.curve').getAttribute('d')?.includes('L')")
        shown.check_accessible()
        shown.keep("gpu-light")


def test_filters_by_pool_and_model_show_only_what_they_choose(browser: Browser, pools: ServedPools) -> None:
    with SitePage(browser, pools.url) as shown:
        page = shown.open()
        for filtered, choice, count, first, last in (
            ("Pool", "research", "of 224", "research-0008, GPU 0", "research-0139, GPU 7"),
            ("Pool", "All pools", "of 1,008", "GPU 0", "GPU"),
            ("Model", "L40S", "of 112", "inference-0006, GPU 0", "inference-0137, GPU 3"),
        ):
            select = page.get_by_label(filtered, exact=True)
            option = select.locator("option", has_text=choice).first
            expect(option).to_be_attached()
            select.select_option(option.get_attribute("value"))
            expect(page.locator(".tile:has-text('GPUs busy') small")).to_have_text(count)
            for key, gpu in (("Home", first), ("End", last)):
                page.locator("#cells").press(key)
                expect(page.locator("[aria-live=polite]")).to_contain_text(gpu)


def test_a_click_on_a_cell_opens_its_gpu_and_a_search_is_kept_on_the_way_back(
    browser: Browser, pools: ServedPools
) -> None:
    with SitePage(browser, pools.url, color_scheme="dark") as shown:
        page = shown.open()
        until(page, "performance.getEntriesByName('first picture').length")
        box = page.locator("#cells").bounding_box()
        assert box is not None
        tip = page.locator(".tip")
        for number in range(60):  # cells stand close together: the next one is a few steps away
            page.mouse.move(box["x"] + 20 + 3 * number, box["y"] + 30 + 2 * number)
            if tip.is_visible():
                break
        node, gpu = tip.locator("b").inner_text().split(" · ")
        page.mouse.down()
        page.mouse.up()
        expect(page.locator("h1")).to_have_text(gpu)
        expect(page.locator("main")).to_contain_text(node)
        page = shown.open("#/")
        page.locator("#search").fill("training")
        expect(page.locator("#hits li").first).to_contain_text("training")
        page.keyboard.press("Enter")
        expect(page.locator(".card")).to_have_count(8)
        with page.expect_response(re.compile("/api/v1/search")):
            page.go_back()
        until(page, f"({BRIGHT})() > 0")  # those that match are not dimmed


def test_a_lost_gpu_has_no_readings(browser: Browser, pools: ServedPools) -> None:
    with SitePage(browser, pools.url, color_scheme="light") as shown:
        page = shown.open("#/nodes/training-0003")
        lost = page.locator(".card").nth(1)
        expect(lost.locator(".state")).to_have_text("lost")
        expect(lost.locator(".line b")).to_have_text([NO_READING] * 4)
        expect(page.locator(".card").nth(0).locator(".line b").nth(1)).to_have_text(re.compile("[1-9][0-9]* W"))
        lost.click()
        expect(page.locator(".state.big")).to_have_text("lost")
        expect(page.locator(".chart .legend b").first).to_have_text(NO_READING)
        expect(page.locator(".panel", has_text="Counters")).to_contain_text("Energy")
        shown.check_accessible()
        shown.keep("gpu-lost-light")


def test_the_theme_is_switched_and_kept(browser: Browser, pools: ServedPools) -> None:
    with SitePage(browser, pools.url, color_scheme="light") as shown:
        page = shown.open()
        until(page, "performance.getEntriesByName('first picture').length")
        page.locator("#theme").click()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        until(page, f"({BRIGHT})() > 0")  # of the dark theme alone
        page.reload()
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_the_link_to_the_content_keeps_the_view_and_a_malformed_address_has_one(
    browser: Browser, pools: ServedPools
) -> None:
    with SitePage(browser, pools.url) as shown:
        page = shown.open("#/pods/%E0")
        expect(page.locator("h1")).to_have_text("Pods")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()
        expect(page.locator("h1")).to_have_text("Pods")


def streams(page: Page) -> list[str]:
    """The streams that a page opens from now on."""
    found: list[str] = []
    page.on("request", lambda request: found.append(request.url) if "/api/v1/stream" in request.url else None)
    return found


def test_a_tab_that_opens_hidden_connects_once_it_is_seen(browser: Browser, pools: ServedPools) -> None:
    with SitePage(browser, pools.url) as shown:
        page = shown.page
        page.add_init_script("window.unseen = true; Object.defineProperty(document, 'hidden', { get: () => unseen });")
        opened = streams(page)
        page.goto(pools.url)
        expect(page.locator("#state")).to_have_text("connecting")
        assert opened == []
        page.evaluate("() => { window.unseen = false; document.dispatchEvent(new Event('visibilitychange')); }")
        expect(page.locator("#state")).to_have_text("live")
        assert len(opened) == 1


def test_a_server_that_hangs_is_noticed_and_tried_again(browser: Browser, pools: ServedPools) -> None:
    with SitePage(browser, pools.url) as shown:
        page = shown.open()
        opened = streams(page)
        os.kill(pools.pid, signal.SIGSTOP)
        try:
            expect(page.locator("#stale")).to_contain_text("No data for", timeout=30_000)
            while not opened:
                page.wait_for_event("request", timeout=30_000)
        finally:
            os.kill(pools.pid, signal.SIGCONT)
        expect(page.locator("#state")).to_have_text("live", timeout=30_000)
        expect(page.locator("#stale")).to_be_hidden()


def test_it_fits_a_phone_in_both_themes(browser: Browser, site: LocalSite, pools: ServedPools) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
    for theme in ("light", "dark"):
        with SitePage(browser, site.url, color_scheme=theme, **phone) as shown:
            for path in ("#/", "#/pods", "#/nodes"):
                shown.open(path)
                expect(shown.page.locator("html")).to_have_attribute("data-theme", theme)
                shown.check_width()
                shown.check_accessible()
                shown.keep(f"phone-{theme}-{path[2:] or 'fleet'}")
    with SitePage(browser, pools.url, **phone) as shown:  # a thousand GPUs
        shown.open()
        shown.check_width()
        shown.check_accessible()


def test_a_lost_server_is_noticed_and_found_again(browser: Browser, site: LocalSite) -> None:
    shown = SitePage(browser, site.url)  # its console reports the lost connection
    page = shown.open()
    with site.killed_controller():
        expect(page.locator("#stale")).to_be_visible(timeout=20_000)
        expect(page.locator("#stale")).to_contain_text("reconnect")
    expect(page.locator("#state")).to_have_text("live", timeout=40_000)
    expect(page.locator("#stale")).to_be_hidden()
    expect(page.locator(tile("GPUs busy"))).to_have_text(re.compile("[0-9]+"))
    page.context.close()


@pytest.fixture
def box(tmp_path: Path) -> Iterator[str]:
    """The page of an exporter with two MIG instances, whose workload has markup for a name."""
    workload, gpus = tmp_path / "base.json", tmp_path / "gpus.json"
    gpus.write_text(json.dumps({"gpus": [{"type": "h200", "count": 2, "mig": ["1g.18gb"]}]}))
    steps = [{"Load": 60, "Seconds": 0}]
    workload.write_text(json.dumps({"Name": "w", "Profile": steps, "Pod": {"Name": MARKUP, "Namespace": MARKUP}}))
    files = ["--config", str(gpus), "--base-workload", str(workload)]
    options = ["--listen", "127.0.0.1:0", "--interval", "0.2", *files]
    process = subprocess.Popen(
        [sys.executable, "-m", "simgpu", "exporter", *options], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    yield next(line.split()[1] for line in process.stderr if line.startswith("Dashboard:"))
    process.terminate()
    process.communicate(timeout=20)


def test_names_are_text_wherever_they_are_shown(browser: Browser, box: str) -> None:
    with SitePage(browser, box) as shown:
        page = shown.open("#/pods")
        expect(page.locator("tbody th").first).to_have_text(MARKUP)
        expect(page.locator("tbody tr").first).to_contain_text("2 instances")
        page = shown.open("#/nodes")
        page.locator("tbody th a").first.click()
        expect(page.locator(".owner").first).to_have_text(f"{MARKUP}/{MARKUP}")
        page.locator(".card").first.click()
        expect(page.locator(".plain b").first).to_have_text(f"{MARKUP}/{MARKUP}")
        page = shown.open("#/")
        page.locator("#search").fill("<img")
        expect(page.locator("#hits li").first).to_contain_text(MARKUP)
        assert page.locator("img[src=x]").count() == 0


def test_an_agents_page_shows_its_node_with_instances_and_the_pod_that_has_a_gpu(
    browser: Browser, agent_page: str
) -> None:
    with SitePage(browser, agent_page, color_scheme="light") as shown:
        page = shown.open("#/pods")
        row = page.locator("tbody tr")
        expect(row).to_contain_text(f"{agents.POD}default", timeout=30_000)
        expect(row).to_contain_text(agents.NODE)
        row.get_by_role("link", name=agents.NODE).click()
        expect(page.locator(".card")).to_have_count(2)
        expect(page.locator("main")).to_contain_text("pool real")
        first, divided = page.locator(".card").nth(0), page.locator(".card").nth(1)
        expect(first.locator(".owner")).to_have_text(f"default/{agents.POD}")
        expect(first).to_contain_text(re.compile("[1-9][0-9]? %"), timeout=30_000)
        expect(divided.locator(".instances .line")).to_have_count(3)
        expect(divided.locator(".instances .line").first).to_contain_text("1g.18gb")
        shown.check_accessible()
        shown.keep("agent-node-light")
        divided.click()
        expect(page.locator(".panel", has_text="Instances")).to_contain_text("1g.18gb")
        shown.check_accessible()
        shown.keep("agent-gpu-light")
        page = shown.open("#/")
        expect(page.locator(".tile:has-text('GPUs busy') small")).to_have_text("of 2")
