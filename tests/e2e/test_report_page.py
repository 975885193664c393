"""The report's page in a real browser: what it draws and how it looks, without a request or a complaint."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from story_samples import BEGIN, UID, Life, eventful

from bed.browser import Page, opened
from resumable_operator.cli.html.page import page as render
from resumable_operator.cli.report_story import tell
from resumable_operator.cli.rundir import JobFile

pytestmark = pytest.mark.timeout(900)  # the browser may have to be installed

EVIL = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
TRAIN = Path(__file__).parents[1] / "fakes" / "train_tiny.py"


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Page]:
    """A browser with one page, which must neither ask for anything nor complain of anything."""
    async with opened(tmp_path / "browser") as page:
        yield page
        await page.evaluate("new Promise((done) => setTimeout(done, 0))")  # what is still to be told
        assert page.complaints == []
        assert [url for url in page.requests if not url.startswith(("file:", "data:,"))] == []


def written(life: Life, directory: Path, name: str = "gpt") -> Path:
    story = tell(
        JobFile("team", name, UID, BEGIN, {}), life.status(reason=name), life.wall, None, life.histories
    )
    file = directory / "report.html"
    file.write_text(render(story.report, story.course, "Written today", story.notes))
    return file


async def numbers_of(browser: Page, expression: str) -> list[float]:
    return [float(value) for value in await browser.evaluate(expression)]


SCREENS = [(1200, False, False), (1200, True, False), (390, False, True), (390, True, True)]


@pytest.mark.parametrize(("width", "dark", "phone"), SCREENS)
async def test_it_fits_every_screen(
    browser: Page, tmp_path: Path, width: int, dark: bool, phone: bool
) -> None:
    """Nothing sticks out at the side, no words of a chart lie on each other, and its colours follow."""
    await browser.look(width, dark=dark, phone=phone)
    await browser.open(written(eventful(), tmp_path, name="gpt-" + "x" * 80))
    assert await browser.evaluate("document.documentElement.scrollWidth") <= width
    colour = await browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colour == ("rgb(15, 19, 23)" if dark else "rgb(251, 251, 249)")
    boxes = await browser.evaluate(
        """[...document.querySelectorAll(".ticks, .marks")].map((holder) => [...holder.children]
        .filter((each) => !each.hidden && getComputedStyle(each).display !== "none")
        .map((each) => [each.getBoundingClientRect().left, each.getBoundingClientRect().right]))"""
    )
    for row in boxes:
        assert all(before[1] <= after[0] + 4 for before, after in pairwise(row)), row
    await browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 40_000


def long_and_bad() -> Life:
    """A job that was interrupted 500 times, of which 50 are kept, with words that have no place to break."""
    life, word = eventful(), "no-place-to-break-" * 40
    last = life.interruptions[-1]
    odd = {"message": word, "worker": word, "tail": (word,) * 20, "cause": "node_lost", "planned": False}
    step = life.wall - BEGIN
    life.interruptions = [
        last.model_copy(update={**odd, "attempt": number + 1, "at": BEGIN + step * number / 50})
        for number in range(50)
    ]
    values = {f"{number}-{'v' * 36}": 1e-30 * 10.0**number for number in range(8)}
    life.histories = [
        replace(history, steps=tuple(replace(each, values=values) for each in history.steps))
        for history in life.histories
    ]
    return life


@pytest.mark.parametrize(("width", "dark", "phone"), SCREENS[1:])
async def test_the_worst_content_fits_too(
    browser: Page, tmp_path: Path, width: int, dark: bool, phone: bool
) -> None:
    """500 interruptions, the longest names, evidence without a space: nothing sticks out, all that can be
    opened being open."""
    life = long_and_bad()
    status = life.status(reason="y" * 1000, interruption_counts={"node_lost": 500})
    story = tell(JobFile("n" * 63, "x" * 253, UID, BEGIN, {}), status, life.wall, None, life.histories)
    assert story.report.endings_not_shown == 450
    file = tmp_path / "report.html"
    file.write_text(render(story.report, story.course, "Written today", ("z" * 500,)))
    await browser.look(width, dark=dark, phone=phone)
    await browser.open(file)
    await browser.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    wide = await browser.evaluate(
        """[...document.querySelectorAll("body *")].filter((each) => !each.closest(".skip, svg, .scroll"))
        .filter((each) => each.getBoundingClientRect().right > WIDTH + 1)
        .map((each) => [each.tagName, each.className])""".replace("WIDTH", str(width))
    )
    assert wide == []
    assert await browser.evaluate("document.documentElement.scrollWidth") <= width
    assert "500 interruptions" in await browser.evaluate("document.body.innerText")


async def test_every_chart_has_something_in_it(browser: Page, tmp_path: Path) -> None:
    """Each drawing shows paths of some size, has a name, and is not hidden."""
    await browser.look(1200)
    await browser.open(written(eventful(), tmp_path))
    charts = await browser.evaluate(
        """[...document.querySelectorAll("svg.layer")].filter((each) => !each.closest("details"))
        .map((each) => [each.getAttribute("aria-label"), each.getBoundingClientRect().width,
          each.getBoundingClientRect().height, [...each.querySelectorAll("path:not(.grid)")].length])"""
    )
    assert len(charts) == 8
    assert all(name and width > 300 and height > 30 and paths for name, width, height, paths in charts)


async def test_all_words_can_be_read(browser: Page, tmp_path: Path) -> None:
    """Contrast of at least 4.5 to 1 between every text and what is behind it, in light and dark."""
    file = written(eventful(), tmp_path)
    for dark in (False, True):
        await browser.look(1200, dark=dark)
        await browser.open(file)
        poor = await browser.evaluate(CONTRAST)
        assert poor == [], dark


# Relative luminance and contrast ratio of WCAG 2; the background is that of the nearest element that has one.
CONTRAST = """(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((each) => each.nodeType === 3 && each.textContent.trim());
    if (!own || !node.getClientRects().length || node.disabled || node.tagName === "SCRIPT") continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) poor.push([node.tagName, node.className, node.textContent.slice(0, 30), ratio]);
  }
  return poor;
})()"""


async def test_keys_move_and_zoom(browser: Page, tmp_path: Path) -> None:
    """Arrows tell what was going on, + and - change the stretch that is shown, 0 shows all."""
    await browser.look(1200)
    await browser.open(written(eventful(), tmp_path))
    await browser.evaluate("document.getElementById('group').focus()")
    assert await browser.evaluate("document.activeElement.id") == "group"
    await browser.key("ArrowRight")
    told = await browser.evaluate("document.getElementById('readout').textContent")
    assert re.search(r"at .* · \w+.* · step .* · goodput so far .* %", told)
    shown = "[...document.querySelectorAll('.time .layer')].map((each) => each.viewBox.baseVal.width)"
    assert set(await numbers_of(browser, shown)) == {10000.0}
    await browser.key("+")
    assert set(await numbers_of(browser, shown)) == {5000.0}
    await browser.key("-")
    await browser.key("-")
    assert set(await numbers_of(browser, shown)) == {10000.0}
    await browser.key("+")
    await browser.key("0")
    assert set(await numbers_of(browser, shown)) == {10000.0}


async def test_dragging_over_a_chart_zooms_all_charts_of_the_time_line(browser: Page, tmp_path: Path) -> None:
    """To what was drawn over; marks and words on the axes follow; the y axis shows what is there."""
    await browser.look(1200)
    await browser.open(written(eventful(), tmp_path))
    box = await browser.evaluate(
        """(() => { const box = [...document.querySelectorAll(".time .plot")][2].getBoundingClientRect();
        return [box.left, box.top, box.width, box.height]; })()"""
    )
    left, top, width, height = box
    before = await browser.evaluate("document.querySelectorAll('.mark:not([hidden])').length")
    await browser.mouse("mouseMoved", left + 0.7 * width, top + height / 2)
    await browser.mouse("mousePressed", left + 0.7 * width, top + height / 2)
    await browser.mouse("mouseMoved", left + 0.9 * width, top + height / 2)
    await browser.mouse("mouseReleased", left + 0.9 * width, top + height / 2)
    views = await browser.evaluate(
        """[...document.querySelectorAll('.time .layer')]
        .map((each) => each.getAttribute('viewBox').split(' ').map(Number))"""
    )
    assert all(abs(view[0] - 7000) < 60 and abs(view[2] - 2000) < 60 for view in views)
    assert any(view[3] < 999 for view in views)
    assert await browser.evaluate("document.querySelectorAll('.mark:not([hidden])').length") < before
    ticks = await browser.evaluate("[...document.querySelectorAll('.time .ticks')][0].textContent")
    assert not ticks.startswith("0")


async def test_what_a_job_says_is_not_run(browser: Page, tmp_path: Path) -> None:
    """Names, evidence and log lines with markup in them are shown as text."""
    life = eventful()
    evil = {"message": EVIL, "worker": EVIL, "tail": (EVIL,)}
    life.interruptions[0] = life.interruptions[0].model_copy(update=evil)
    await browser.look(1200)
    await browser.open(written(life, tmp_path, name=EVIL))
    assert await browser.evaluate("typeof window.hacked") == "undefined"
    assert await browser.evaluate("document.querySelectorAll('img').length") == 0
    assert "window.hacked" in await browser.evaluate("document.body.innerText")


async def test_a_real_run_has_a_page_with_its_ledger_s_numbers(browser: Page, tmp_path: Path) -> None:
    """Trained and finished: the page of `rtj report --html` has every millisecond of its status."""
    run = tmp_path / "run"
    rtj = Path(sys.executable).with_name("rtj")
    command = [rtj, "run", "--dir", run, "--workers", "1", "--save-every-steps", "10"]
    script = [TRAIN, "--", "--steps", "60", "--step-seconds", "0.02"]
    done = subprocess.run([*command, *script], capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    (history,) = (run / "checkpoints" / "history").iterdir()
    kinds = [json.loads(line)["kind"] for line in history.read_text().splitlines()]
    assert (kinds[0], kinds[1], kinds[-1]) == ("begin", "restored", "committing")
    assert {"step", "save"} <= set(kinds)
    file = tmp_path / "report.html"
    subprocess.run([rtj, "report", run, "--html", file], check=True, capture_output=True)
    await browser.look(1200)
    await browser.open(file)
    shown = await browser.evaluate(
        """[...document.querySelectorAll(".phases tbody tr")]
        .map((row) => row.querySelector(".num").textContent)"""
    )
    ledger: dict[str, Any] = json.loads((run / "status.json").read_text())["status"]["ledger"]
    known = sorted((ms for ms in ledger["phases"].values() if ms), reverse=True)
    assert [round(float(text.replace(",", "")) * 1000) for text in shown] == known
    steps = await browser.evaluate("JSON.parse(document.getElementById('data').textContent).points.at(-1)")
    assert steps[1] == 60
    assert "loss" in (await browser.evaluate("document.body.innerText")).lower()


def environment() -> dict[str, str]:
    """With what the script imports from the fakes."""
    return {**os.environ, "PYTHONPATH": str(TRAIN.parent)}
