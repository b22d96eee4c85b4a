"""The page of `hpd review build` in a real browser: decide, reload, go back, export, score."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.test_compare import write_run
from tests.jobs.test_dataset import row, write
from tests.jobs.test_review import HOSTILE, build, data, runs, score  # noqa: F401  (data and runs are fixtures)

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra `dev`")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on the path (Debian: chromium)")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
#: The page takes no decision in a product's first 300 ms.
GUARD = 350


class Browser:
    """A page in a Chromium with a profile of its own, and everything that went wrong in it."""

    def __init__(self, driver: Any, profile: Path, file: Path) -> None:
        self._open = lambda: driver.chromium.launch_persistent_context(
            profile,
            executable_path=CHROMIUM,
            headless=True,
            args=FLAGS,
            accept_downloads=True,
            viewport={"width": 1280, "height": 800},
        )
        self.url = file.as_uri()
        self.requests: list[str] = []
        self.faults: list[str] = []
        self.restart()

    def restart(self) -> None:
        """Opens the page, in the same profile again where it was open."""
        if hasattr(self, "context"):
            self.context.close()
        self.context = self._open()
        self.page = self.context.pages[0]
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda line: self.faults.append(line.text))
        self.page.goto(self.url)

    def press(self, key: str) -> None:
        self.page.wait_for_timeout(GUARD)
        self.page.keyboard.press(key)

    def click(self, name: str) -> None:
        self.page.wait_for_timeout(GUARD)
        self.page.get_by_role("button", name=name, exact=True).click()

    def text(self, name: str) -> str:
        return self.page.locator(f"#{name}").inner_text()

    def side_of(self, run: str) -> str:
        """ "1" or "2": where the answer of `run` stands on the product in sight."""
        one = self.page.locator("#answers tbody tr td").nth(0).inner_text()
        return "1" if one.startswith(run) else "2"

    def stored(self) -> dict[str, Any]:
        (entry,) = self.page.evaluate("Object.values(localStorage)")
        return json.loads(entry)


@pytest.fixture
def browser(tmp_path: Path, data: Path, runs: tuple[Path, Path]) -> Iterator[Browser]:  # noqa: F811
    assert build(runs, data, tmp_path / "page.html").exit_code == 0
    with playwright.sync_playwright() as driver:
        made = Browser(driver, tmp_path / "profile", tmp_path / "page.html")
        yield made
        made.context.close()


def test_a_reviewer_decides_comes_back_and_exports_what_the_scorer_counts(browser: Browser, tmp_path: Path) -> None:
    page = browser.page
    assert browser.text("progress") == "Product 1 of 10: 0 decided, 0 skipped, 10 open"
    # Texts of products and models are shown as they are, and run nothing.
    assert HOSTILE[:40] in browser.text("text") and "{{ 7 * 7 }}" in browser.text("text")
    cells = page.locator("#answers tbody tr.differs > *").all_inner_texts()
    assert cells[0] == "Brand" and sorted(value[:3] for value in cells[1:]) == ["ada", "eve"]
    assert page.locator("#question script, #question img").count() == 0
    assert browser.text("empty") == "No value in either answer: Size"

    for run in ("adam", "adam", "adam"):  # 1 to 3, by keys
        browser.press(browser.side_of(run))
    browser.press("0")  # 4
    browser.press("S")  # 5
    browser.click(f"{browser.side_of('eve')}Answer {browser.side_of('eve')}")  # 6
    assert browser.text("progress") == "Product 7 of 10: 5 decided, 1 skipped, 4 open"
    assert set(browser.stored()["decisions"]) == {"1", "2", "3", "4", "5", "6"}

    browser.restart()
    page = browser.page
    assert browser.text("progress") == "Product 7 of 10: 5 decided, 1 skipped, 4 open"
    assert browser.text("bar") == "" and page.evaluate("document.getElementById('bar').value") == 6
    for _ in range(4):
        browser.press("ArrowLeft")
    pressed = page.locator("[data-choice][aria-pressed=true]")
    assert pressed.get_attribute("data-choice") == browser.side_of("adam")  # of 3
    browser.press(browser.side_of("eve"))  # another mind
    assert browser.text("progress").startswith("Product 4 of 10: 5 decided")
    for _ in range(6):
        browser.press("ArrowRight")
    browser.press("0")  # 10; 7 to 9 are open
    assert page.locator("#end").is_visible() and not page.locator("#question").is_visible()
    browser.press("1")
    assert browser.text("progress") == "6 decided, 1 skipped, 3 open"
    browser.click("Go to the first open one")
    assert browser.text("progress").startswith("Product 7 of 10")

    browser.click("Export decisions")
    assert browser.text("exported") == "Please enter your name first."
    page.keyboard.type("Ann 120s/.. Ö")  # no decisions, though these are its keys
    assert browser.text("progress") == "Product 7 of 10: 6 decided, 1 skipped, 3 open"
    with page.expect_download() as download:
        browser.click("Export decisions")
    name = download.value.suggested_filename
    assert name.endswith("-Ann-120s-Ö.json") and "/" not in name
    download.value.save_as(tmp_path / "ann.json")
    exported = json.loads((tmp_path / "ann.json").read_text(encoding="utf-8"))
    assert exported["reviewer"] == "Ann 120s/.. Ö"
    assert all(0.3 <= decision["seconds"] < 300 for decision in exported["decisions"])

    result = score(tmp_path / "o", tmp_path / "page.key.json", tmp_path / "ann.json")
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "o" / "review.json").read_text())["rows"]
    assert {line["question"]: line["verdict"] for line in rows} == {
        1: "A", 2: "A", 3: "B", 4: "tie", 6: "B", 10: "tie",
    }  # fmt: skip
    assert browser.faults == []
    assert set(browser.requests) <= {browser.url} | {url for url in browser.requests if url.startswith("blob:")}


def test_a_key_held_down_or_a_second_click_decides_one_product(browser: Browser) -> None:
    browser.page.wait_for_timeout(GUARD)
    for _ in range(5):
        browser.page.keyboard.down("1")  # repeats
    browser.page.keyboard.up("1")
    assert set(browser.stored()["decisions"]) == {"1"}
    browser.page.wait_for_timeout(GUARD)
    browser.page.locator("[data-choice=tie]").dblclick()
    assert set(browser.stored()["decisions"]) == {"1", "2"}
    browser.press("Control+1")
    assert set(browser.stored()["decisions"]) == {"1", "2"}


def test_start_over_asks_first(browser: Browser) -> None:
    browser.press("1")
    browser.page.once("dialog", lambda dialog: dialog.dismiss())
    browser.click("Start over")
    assert browser.stored()["decisions"]
    browser.page.once("dialog", lambda dialog: dialog.accept())
    browser.click("Start over")
    assert browser.stored() == {"reviewer": "", "decisions": {}}
    assert browser.text("progress").startswith("Product 1 of 10: 0 decided")


def test_on_a_phone_nothing_sticks_out_and_the_buttons_stay_in_sight(tmp_path: Path) -> None:
    long = "unbreakable" * 20
    lines = "\n".join(f"line {n}" for n in range(80))
    file = write(tmp_path / "x.jsonl", *(row(f"{lines} {long}", "Tea", **{f"Attribute{n}": "x" for n in range(30)}),))
    said = [[{f"Attribute{n}": f"{run} {long}" for n in range(30)}] for run in ("adam", "eve")]
    folders = tuple(write_run(tmp_path / f"r{place}", file, values) for place, values in enumerate(said))
    assert build(folders, file, tmp_path / "page.html").exit_code == 0
    with playwright.sync_playwright() as driver:
        browser = Browser(driver, tmp_path / "profile", tmp_path / "page.html")
        browser.page.set_viewport_size({"width": 390, "height": 844})
        assert browser.page.evaluate("document.documentElement.scrollWidth") == 390
        assert browser.page.evaluate("document.documentElement.scrollHeight") > 2000
        box = browser.page.locator("[data-choice=tie]").bounding_box()
        assert 0 <= box["y"] < 844 - box["height"]
        browser.context.close()
