"""The first screen of a page as a PNG, taken by a Chromium on the path (Debian: chromium).

`python docs/example-report/screenshot.py PAGE.html PICTURE.png`. Ends with 1 where the page is wider than a
phone's screen, asks for anything outside its file, or has an error. Without arguments: ends with 1 where it could not
take a picture on this machine.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
#: Screens in CSS pixels.
DESK, PHONE = {"width": 800, "height": 1000}, {"width": 390, "height": 844}
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True, slots=True)
class Seen:
    """title: of the page. phone_width: how wide it is on a phone. requests: all but the page itself. faults: errors."""

    title: str
    phone_width: int
    requests: tuple[str, ...]
    faults: tuple[str, ...]

    @property
    def problems(self) -> list[str]:
        wide = [f"{self.phone_width} pixels wide on a phone"] if self.phone_width > PHONE["width"] else []
        return [*wide, *(f"asks for {url}" for url in self.requests), *self.faults]


def browser() -> str | None:
    return next(filter(None, map(shutil.which, _BROWSERS)), None)


def look(page: Path, picture: Path) -> Seen:
    """Takes the picture of the first screen on a desk, and looks at the page on a phone."""
    from playwright.sync_api import sync_playwright

    url, requests, faults = page.absolute().as_uri(), [], []

    def told(line: Any) -> None:
        faults.append(line.text)

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=browser(), headless=True, args=FLAGS)
        view = opened.new_page(viewport=DESK, device_scale_factor=1.5)
        view.on("request", lambda request: requests.append(request.url))
        view.on("pageerror", lambda error: faults.append(str(error)))
        view.on("console", told)
        view.goto(url)
        view.screenshot(path=picture)
        title = view.title()
        view.set_viewport_size(PHONE)
        width = int(view.evaluate("document.documentElement.scrollWidth"))
        opened.close()
    return Seen(title, width, tuple(r for r in requests if r != url), tuple(faults))


def missing() -> str:
    """Why no picture can be taken here; empty where one can."""
    if browser() is None:
        return f"no browser on the path: one of {', '.join(_BROWSERS)}"
    try:
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder, "page.html")
            page.write_text("<title>x</title>")
            look(page, Path(folder, "picture.png"))
    except Exception as error:  # playwright is not there, or the browser does not start
        return f"no picture can be taken: {error}"
    return ""


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(missing() or 0)
    problems = look(Path(sys.argv[1]), Path(sys.argv[2])).problems
    for problem in problems:
        print(f"{sys.argv[1]}: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)
