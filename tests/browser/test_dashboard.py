"""The live page as a person sees it, with a real cluster behind it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.fixtures.chromium import until
from tests.fixtures.local_site import LocalSite, SitePage

MARKUP = "<img src=x onerror=alert(1)><b>x</b>"
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
        expect(page.locator(tile("GPUs busy"))).to_have_text("0")
        until(page, "performance.getEntriesByName('first picture').length")
        assert page.evaluate(BRIGHT) == 0
        site.create_pod("turns", 8)
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


def test_pods_are_listed_with_what_they_have_or_why_they_wait(browser: Browser, site: LocalSite) -> None:
    site.create_pod("works", 2, 50)
    site.create_pod("waits", 9)
    with SitePage(browser, site.url, color_scheme="light") as shown:
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


def test_filters_show_only_what_they_choose(browser: Browser, site: LocalSite) -> None:
    with SitePage(browser, site.url) as shown:
        page = shown.open()
        page.locator("#search").fill("turns")
        expect(page.locator("#hits li").first).to_contain_text("default/turns", timeout=30_000)
        page.keyboard.press("Escape")
        expect(page.locator("#hits")).to_be_hidden()


def test_it_fits_a_phone_in_both_themes(browser: Browser, site: LocalSite) -> None:
    for theme in ("light", "dark"):
        with SitePage(
            browser, site.url, color_scheme=theme, viewport={"width": 390, "height": 844}, has_touch=True
        ) as shown:
            for path in ("#/", "#/pods", "#/nodes"):
                shown.open(path)
                expect(shown.page.locator("html")).to_have_attribute("data-theme", theme)
                shown.check_width()
                shown.check_accessible()
                shown.keep(f"phone-{theme}-{path[2:] or 'fleet'}")


def test_a_lost_server_is_noticed_and_found_again(browser: Browser, site: LocalSite) -> None:
    shown = SitePage(browser, site.url)
    page = shown.open()
    site.kill_controller()
    expect(page.locator("#stale")).to_be_visible(timeout=20_000)
    expect(page.locator("#stale")).to_contain_text("reconnect")
    site.up()
    expect(page.locator("#state")).to_have_text("live", timeout=40_000)
    expect(page.locator("#stale")).to_be_hidden()
    expect(page.locator(tile("GPUs busy"))).to_have_text(re.compile("[0-9]+"))
    shown.page.context.close()


@pytest.fixture
def box(tmp_path: Path) -> Iterator[str]:
    """The page of an exporter whose workload has markup for a name."""
    workload = tmp_path / "base.json"
    steps = [{"Load": 60, "Seconds": 0}]
    workload.write_text(json.dumps({"Name": "w", "Profile": steps, "Pod": {"Name": MARKUP, "Namespace": MARKUP}}))
    options = ["--count", "2", "--listen", "127.0.0.1:0", "--interval", "0.2", "--base-workload", str(workload)]
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
        page = shown.open("#/nodes")
        page.locator("tbody th a").first.click()
        expect(page.locator(".owner").first).to_have_text(f"{MARKUP}/{MARKUP}")
        page.locator(".card").first.click()
        expect(page.locator(".plain b").first).to_have_text(f"{MARKUP}/{MARKUP}")
        page = shown.open("#/")
        page.locator("#search").fill("<img")
        expect(page.locator("#hits li").first).to_contain_text(MARKUP)
        assert page.locator("img[src=x]").count() == 0
