"""Take the picture of the gallery's page in docs/images, in a real browser.

Usage, after `unibct demo` has trained an old and a new model on the embedded glyphs:

    unibct evaluate glyphs:test --query NEW --gallery OLD --certify certificate.json
    python scripts/picture_gallery_page.py OLD NEW certificate.json [FOLDER]

FOLDER is docs/images if it is left out; else pictures of a phone and of dark pages come too. The
rows are glyphs:val. Needs chromium, or UNIBCT_BROWSER with the path of one.
"""

import json
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, FloatRect, sync_playwright

from unibct.data.readers import open_images
from unibct.gallery.gallery import Gallery
from unibct.gallery.page import configured_server, opened_socket
from unibct.gallery.page.app import make_app
from unibct.gallery.page.changes import GalleryChanges
from unibct.gallery.page.shown_gallery import ShownGallery

ROWS = "glyphs:val"
QUERY = "U+2159/great-vibes"
NAME = "gallery-page.png"
PICTURES = Path(__file__).parent.parent / "docs" / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FURTHER = {"phone.png": (360, "light"), "dark.png": (1100, "dark"), "night.png": (360, "dark")}


def make_gallery(old: str, new: str, certificate: str, folder: Path) -> Path:
    """Make an upgraded gallery, half backfilled."""
    gallery = Gallery.create(folder / "glyphs", old)
    gallery.add(ROWS)
    gallery.upgrade(new, [certificate])
    gallery.backfill(ROWS, share=0.5)
    gallery.close()
    return folder / "glyphs"


def take_picture(browser: Browser, address: str, samples: str, path: Path, look: Any) -> None:
    """Search with the first of some samples, and take a picture; for docs, of the upper part."""
    width, scheme = look
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.route("**/api/samples*", lambda route: route.fulfill(json=json.loads(samples)))
    page.goto(address)
    page.select_option("#k", "5")
    page.locator(".sample").first.click()
    page.wait_for_selector(".column.now .hit")
    page.mouse.move(0, 0)
    page.wait_for_timeout(1500)
    end = page.locator("#upgrade").evaluate("e => Math.ceil(e.getBoundingClientRect().bottom)")
    whole: FloatRect = {"x": 0, "y": 0, "width": width, "height": end}
    page.screenshot(path=path, full_page=True, clip=None if path.parent != PICTURES else whole)
    page.close()
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(256).save(path, optimize=True)


def main(old: str, new: str, certificate: str, folder: str = "") -> None:
    """Make the gallery, serve its page, and take pictures of it."""
    executable = os.environ.get("UNIBCT_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)))
    images = open_images(ROWS)
    with tempfile.TemporaryDirectory() as place:
        path = make_gallery(old, new, certificate, Path(place))
        shown = ShownGallery(path, images)
        first = {"id": QUERY, "label": shown.query(QUERY).label}
        others = [sample.model_dump() for sample in shown.samples(11, seed=2)]
        server = configured_server(make_app(shown, GalleryChanges(path, images)))
        with opened_socket("127.0.0.1", 0) as listening, sync_playwright() as playwright:
            thread = threading.Thread(target=server.run, args=([listening],))
            thread.start()
            address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
            browser = playwright.chromium.launch(executable_path=executable)
            views = {NAME: (1100, "light")} | (FURTHER if folder else {})
            for name, view in views.items():
                samples = json.dumps({"samples": [first, *others]})
                take_picture(browser, address, samples, Path(folder or PICTURES) / name, view)
            browser.close()
            server.should_exit = True
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
