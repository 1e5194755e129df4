"""A real browser for tests of pages, and what checks of a page share."""

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CONTRAST = 4.5  # WCAG AA for text

# What checks share: colours as [red, green, blue, alpha], and their contrast.
HELPERS = """
const rgba = text => {
  const numbers = text.match(/[\\d.]+/g).map(Number);
  return numbers.length < 4 ? [...numbers, 1] : numbers;
};
const luminance = ([...colour]) => {
  const [r, g, b] = colour.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const background = element => {
  for (let e = element; e; e = e.parentElement) {
    const colour = rgba(getComputedStyle(e).backgroundColor);
    if (colour[3] === 1) return colour;
    if (colour[3] > 0) throw new Error("a background that shines through: " + e.outerHTML);
  }
  return [255, 255, 255, 1];
};
const contrast = (element, property = "color") => {
  const pair = [rgba(getComputedStyle(element)[property]), background(element)].map(luminance);
  return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
};
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const named = element => `${element.tagName} ${element.textContent.trim().slice(0, 30)}`;
"""


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    from playwright.sync_api import sync_playwright

    path = os.environ.get("UNIBCT_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.fail(
            "no browser: install chromium (Debian: apt-get install chromium), or set "
            "UNIBCT_BROWSER to the path of a Chromium or Chrome",
            pytrace=False,
        )
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--disable-gpu"])
        yield started
        started.close()


def ask(page: "Page", script: str) -> list[str]:
    """Return the problems that a script finds; its last line is the array of them."""
    *before, last = script.strip().splitlines()
    body = "\n".join(before)
    return page.evaluate(f"() => {{ {HELPERS}\n{body}\nreturn {last}; }}")
