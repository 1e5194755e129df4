"""The page in a real browser: search, backfill, pause and rollback, also by keyboard alone."""

import base64
import re
import threading
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser import CONTRAST, ask
from tests.gallery.conftest import broken
from tests.gallery.page.conftest import png
from tests.gallery.toys import NEW, toy_certificate, toy_images, written
from unibct.gallery.backfill import BackfillSource
from unibct.gallery.gallery import Gallery
from unibct.gallery.page import configured_server, opened_socket
from unibct.gallery.page.app import make_app
from unibct.gallery.page.changes import GalleryChanges
from unibct.gallery.page.shown_gallery import ShownGallery

pytestmark = pytest.mark.xdist_group("gallery page")
VIEWS = [(width, scheme) for width in (360, 1280) for scheme in ("light", "dark")]
SECONDS = 20_000  # of patience, in milliseconds
# An event with a file, as dropping or pasting it makes.
WITH_FILE = """([selector, name, data]) => {
  const bytes = Uint8Array.from(atob(data), letter => letter.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], "query.png", { type: "image/png" }));
  const options = { bubbles: true, cancelable: true };
  const event = name === "paste" ? new ClipboardEvent(name, { ...options, clipboardData: transfer })
    : new DragEvent(name, { ...options, dataTransfer: transfer });
  document.querySelector(selector).dispatchEvent(event);
}"""


@pytest.fixture
def address(upgraded: Gallery) -> Iterator[str]:
    """The address of a real server of an upgraded gallery."""
    path, images = upgraded.folder.path, toy_images()
    app = make_app(ShownGallery(path, images), GalleryChanges(path, images))
    with opened_socket("127.0.0.1", 0) as listening:
        server = configured_server(app)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        server.should_exit = True
        thread.join()


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a backfill take its time, so that it can be watched and paused."""
    remade = BackfillSource.vectors_of

    def slow(origin, rows):
        time.sleep(0.15)
        return remade(origin, rows)

    monkeypatch.setattr(BackfillSource, "vectors_of", slow)
    monkeypatch.setattr("unibct.gallery.backfill._BATCH", 2)


class Watched:
    """A page, and what it should not have done: errors, and requests to other hosts."""

    def __init__(self, browser: Browser, address: str, width: int = 1280, scheme: str = "light"):
        self.page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        self.problems: list[str] = []
        self.page.on(
            "console", lambda m: self.problems.append(m.text) if m.type == "error" else None
        )
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda r: self._note(r.url, address))
        self.page.goto(address)
        expect(self.page.locator("#summary")).to_contain_text("48 rows, searched by")

    def _note(self, url: str, address: str) -> None:
        if not url.startswith((address, "blob:", "data:")):
            self.problems.append(f"asks another host: {url}")


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The page, which has no problem until its end."""
    watched = Watched(browser, address)
    yield watched.page
    assert watched.problems == []
    watched.page.close()


def choose(page: Page) -> None:
    file = {"name": "query.png", "mimeType": "image/png", "buffer": png("c2/60")}
    page.set_input_files("#file", file)
    expect(page.locator("#search-status")).to_have_text(
        "Found 10 by old_model, 10 by new_model.", timeout=SECONDS
    )


def test_search_backfill_pause_and_rollback(page, slowly):
    choose(page)
    expect(page.locator("#column-before")).to_have_text("Before: old_model")
    expect(page.locator("#column-now")).to_have_text("Now: new_model")
    assert page.locator(".column.before .hit").count() == 10
    assert page.locator(".column.now .hit").count() == 10
    expect(page.locator(".column.now .hit-about").first).to_contain_text("older row, old_model")
    assert page.locator(".hit img").first.evaluate("image => image.decode().then(() => true)")

    page.select_option("#share", "0.75")
    page.click("#backfill")
    expect(page.locator("#job-progress")).to_be_visible()
    expect(page.locator("#job-status")).to_contain_text(re.compile(r"[1-9]\d* of 36 rows"))
    page.click("#pause")
    expect(page.locator("#job-status")).to_contain_text("paused", timeout=SECONDS)
    expect(page.locator("#backfill")).to_have_text("Continue")
    expect(page.locator("#rows-legend")).not_to_contain_text("48 (100 %)")
    page.click("#backfill")
    expect(page.locator("#job-status")).to_contain_text("36 of 48 rows are now", timeout=SECONDS)
    expect(page.locator("#rows-legend")).to_contain_text("36 (75 %) by new_model")
    expect(page.locator(".column.now")).to_contain_text("own row, new_model")  # searched again
    assert page.locator("#curve-picture .known-point").count() > 2

    page.select_option("#target", "3")
    page.click("#rollback")
    expect(page.locator("#confirm-words")).to_contain_text("old_model searches then")
    page.click("#confirm-no")
    expect(page.locator("#confirm")).to_be_hidden()
    page.click("#rollback")
    page.click("#confirm-yes")
    expect(page.locator("#job-status")).to_contain_text("as before step 3", timeout=SECONDS)
    expect(page.locator("#summary")).to_have_text("48 rows, searched by old_model.")
    expect(page.locator(".column")).to_have_count(1)
    expect(page.locator("#rollback")).to_be_disabled()


def test_the_page_says_what_a_certificate_does_not_promise(page, upgraded, tmp_path):
    fingerprints = list(upgraded.folder.state.kinds)
    upgraded.rollback()
    changes = {
        "classes": {"basis": "overridden", "seen": 3, "tested": 3, "unknown": None},
        "template_verdict": "within noise",
        "carried_fars": ["0.1"],
    }
    certificate = written(toy_certificate(*fingerprints, **changes), tmp_path)
    upgraded.upgrade(NEW, [certificate], force=True)
    page.reload()
    expect(page.locator("#forced")).to_contain_text("without a certificate that allows it")
    expect(page.locator("#doubtful")).to_contain_text("not known to have been new to the models")
    certificate = page.locator("#certificates")
    expect(certificate).to_contain_text("compatible for rows of old_model (templates: within noise")
    expect(certificate.locator(".notice")).to_contain_text("some or all of them classes")
    expect(certificate).to_contain_text("ranked best on half of the test classes")
    rates = certificate.locator("table").last.locator("tbody th")
    expect(rates).to_have_text(["1 in 10", "1 in 100 rough"])


def test_a_rollback_that_was_stopped_goes_on(page, upgraded):
    upgraded.remove(["c0/0"])
    upgraded.add(toy_images(classes=1, per_class=1))  # now by the new model
    with broken("rollback._make_rows"):
        upgraded.rollback(data=toy_images())
    page.reload()
    expect(page.locator("#rollback-words")).to_contain_text("before step 3 is not complete")
    page.click("#rollback")
    expect(page.locator("#confirm-words")).to_contain_text("embedded by old_model")
    page.click("#confirm-yes")
    expect(page.locator("#job-status")).to_contain_text("1 rows were embedded", timeout=SECONDS)
    expect(page.locator("#rollback")).to_be_disabled()
    expect(page.locator("#rollback-words")).to_contain_text("no upgrade and no backfill")


@pytest.mark.parametrize("way", ["drop", "paste"])
def test_an_image_is_dropped_or_pasted(browser, address, way):
    watched = Watched(browser, address)
    data = base64.b64encode(png("c2/60")).decode()
    watched.page.evaluate(WITH_FILE, ["#drop", way, data])
    expect(watched.page.locator(".column.now .hit-name").first).to_contain_text("c2")
    expect(watched.page.locator("#query-picture")).to_have_attribute("alt", "The query: query.png")
    bad = base64.b64encode(b"no image").decode()
    watched.page.evaluate(WITH_FILE, ["#drop", way, bad])
    expect(watched.page.locator("#search-status")).to_have_text(
        "No results: not a PNG, JPEG or WebP image"
    )
    watched.page.close()


def test_everything_by_keyboard_alone(page, slowly):
    expect(page.locator(".sample")).to_have_count(12)

    def pressed_until(selector: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            assert page.evaluate(VISIBLE_FOCUS), page.evaluate("document.activeElement.outerHTML")
            if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                return
        raise AssertionError(f"the focus never comes to {selector}")

    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    for selector in ("nav a", "#file", "#k", ".sample"):
        pressed_until(selector)
    page.keyboard.press("Enter")
    expect(page.locator("#search-status")).to_contain_text("Found 10 by", timeout=SECONDS)
    pressed_until("#backfill")
    page.keyboard.press("Enter")
    expect(page.locator("#pause")).to_be_focused(timeout=SECONDS)  # the other one is disabled
    page.keyboard.press("Enter")
    expect(page.locator("#job-status")).to_contain_text("paused", timeout=SECONDS)
    expect(page.locator("#backfill")).to_be_focused()
    pressed_until("#rollback")
    page.keyboard.press("Enter")
    expect(page.locator("#confirm-no")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#confirm")).to_be_hidden()
    expect(page.locator("#rollback")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator("#confirm-yes")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#job-status")).to_contain_text("as before step 4", timeout=SECONDS)


VISIBLE_FOCUS = """() => {
  const focused = document.activeElement;
  const shown = focused.id === "file" ? focused.nextElementSibling : focused;
  const box = shown.getBoundingClientRect();
  const style = getComputedStyle(shown);
  return box.width > 0 && box.left >= 0 && style.outlineStyle !== "none"
    && parseFloat(style.outlineWidth) >= 2;
}"""


def test_how_it_looks_and_reads(browser, address):
    """On a phone and a wide screen, in light and in dark: nothing is cut off, faint or nameless."""
    problems: list[str] = []
    for width, scheme in VIEWS:
        watched = Watched(browser, address, width, scheme)
        choose(watched.page)
        found = [*watched.problems, *_layout(watched.page), *_names(watched.page)]
        problems += [f"{width} px, {scheme}: {problem}" for problem in found]
        watched.page.close()
    assert not problems, "\n".join(problems)


def _layout(page: Page) -> list[str]:
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    faint = ask(
        page,
        f"""
        const texts = all("body *").filter(e => e.checkVisibility() && !e.closest("svg, select")
          && !e.disabled && !e.matches(".skip")
          && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
        const labels = all("svg text");
        const bad = [...texts.filter(e => contrast(e) < {CONTRAST}),
          ...labels.filter(e => contrast(e, "fill") < {CONTRAST})].map(named);
        const small = all("button, select, .button").filter(e => e.checkVisibility()
          && e.getBoundingClientRect().height < 24).map(e => "small: " + named(e));
        const cut = texts.filter(e => !e.closest("nav, .scroll")
          && e.getBoundingClientRect().right > innerWidth).map(e => "cut: " + named(e));
        labels.length && texts.length > 50 ? [...bad, ...small, ...cut] : ["hardly any text"]
        """,
    )
    return ([f"{wide} px too wide"] if wide > 0 else []) + faint


def _names(page: Page) -> list[str]:
    """Check what a screen reader would say."""
    nameless = ask(
        page,
        """
        const name = e => e.getAttribute("aria-label") || e.alt || e.title || e.textContent.trim()
          || [...(e.labels ?? [])].map(l => l.textContent).join("")
          || all("img", e).map(i => i.alt).join("");
        const controls = all("a, button, input, select, progress");
        const bad = controls.filter(e => !name(e)).map(e => "no name: " + e.outerHTML);
        const pictures = all("img").filter(e => !e.hasAttribute("alt")).map(e => e.outerHTML);
        const tables = all("table").filter(e => !e.caption?.textContent).map(() => "no caption");
        [...bad, ...pictures, ...tables]
        """,
    )
    heard = page.locator("body").aria_snapshot()
    wanted = (
        "banner",
        'navigation "Sections"',
        "main",
        'heading "Search with an image" [level=2]',
        'region "The upgrade"',
        'region "Before: old_model"',
        "status: Found 10 by old_model, 10 by new_model.",
        'img "100 % made by old_model',
        "contentinfo",
    )
    return nameless + [f"not heard: {text}" for text in wanted if text not in heard]
