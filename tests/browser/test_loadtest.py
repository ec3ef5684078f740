"""The report of a load test, as a person sees it."""

from __future__ import annotations

import random
from pathlib import Path

from playwright.sync_api import Browser

from simgpu.loadtest.measurements.bench import Summary
from simgpu.loadtest.reports import writing
from simgpu.loadtest.running.results import CaseResult, RunResult
from simgpu.loadtest.running.timeline import TimelineSample


def result() -> RunResult:
    chance = random.Random(1)
    line = [
        TimelineSample(
            at=float(at), pending=40 - at if at < 40 else 0, running=min(at, 30), done=max(0, at - 30), claims=40,
            claims_allocated=min(at, 40), gpus=min(at, 30), objects=min(at * 2, 40), scheduled_per_second=5.0 + at % 3,
            api_p50=4.0, api_p99=9.0 + at % 5,
        )
        for at in range(60)
    ]  # fmt: skip
    data = {"Perc50": 120.0, "Perc90": 250.0, "Perc99": 410.5}
    content = {"version": "1.0", "dataItems": [{"data": data, "unit": "ms", "labels": {"Metric": "pod_startup"}}]}
    return RunResult(
        scenario="waves",
        identifier="",
        config=f"/a-{'long-' * 30}path/config.yaml",
        run="abc",
        server="https://127.0.0.1:6443",
        started=1e9,
        seconds=60.0,
        cases=[CaseResult("[step: 01] create", 3.0), CaseResult("[step: 02] gather [00] - Latency", 1.0, ["too slow"])],
        summaries=[Summary("PodStartupLatency_Latency", content)],
        timeline=line,
        startup=[(chance.uniform(0, 60), chance.lognormvariate(-1, 0.5)) for _ in range(500)],
        steps=[(0.0, "create"), (40.0, "gather")],
        pods=500,
    )


def test_the_report_shows_verdict_figures_and_plots_and_asks_for_nothing_else(browser: Browser, tmp_path: Path) -> None:
    writing.write(tmp_path, result())
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    address = (tmp_path / "report.html").as_uri()
    page.goto(address)
    assert page.title() == "waves: load test"
    assert page.locator("h1 .bad").inner_text() == "failed"
    assert page.locator("li", has_text="too slow").is_visible()
    assert page.locator("td", has_text="410.5").is_visible()
    assert page.locator("figure").count() == 8
    for plot in page.locator("figure svg").all():
        box = plot.bounding_box()
        assert box is not None
        assert box["width"] > 300
        assert box["height"] > 100
    assert page.locator("circle").count() == 500
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.set_viewport_size({"width": 380, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert asked == [address]
    assert complaints == []
    page.close()
