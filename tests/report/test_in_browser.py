"""The reports in a real browser: on a phone and a wide screen, in light and in dark."""

from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.browser import CONTRAST, HELPERS, ask
from tests.conftest import TINY
from tests.report.told_story import told_story
from unibct.benchmark.grid import make_grid
from unibct.benchmark.jobs import cell_folder, free_folder, old_folder
from unibct.benchmark.run import plan_benchmark, run_benchmark
from unibct.evaluation.upgrade import evaluate_embeddings
from unibct.examples.demo import DemoPlan, DemoResult
from unibct.report.pages import write_benchmark_report, write_report
from unibct.training.recipe import load_recipe

VIEWS = [(width, scheme) for width in (390, 1280) for scheme in ("light", "dark")]
BENCHMARK, DEMO = "report.html", "demo.html"


@pytest.fixture(scope="module")
def pages(tmp_path_factory, photo_folder) -> list[Path]:
    """A tiny benchmark's report, and the demo's report on three of its models."""
    out = tmp_path_factory.mktemp("browser")
    recipe = load_recipe("glyphs", [*TINY, "epochs=2", "refresh_epochs=[]"])
    grid = make_grid(
        str(photo_folder),
        recipe=recipe,
        scenarios=("extended-data", "open-class"),
        methods=("none", "unibct-centroid", "unibct-plus"),
        seeds=(0,),
        chain=("unibct-plus",),
    )
    benchmark = replace(plan_benchmark(grid, out, workers=1, device="cpu"), threads=1)
    write_benchmark_report(run_benchmark(benchmark), benchmark, out)

    workspace, scenario, method = benchmark.workspace, "extended-data", "unibct-plus"
    jobs = {
        "old": old_folder(scenario, 0),
        "new": cell_folder(scenario, method, 0),
        "free": free_folder(scenario, 0),
    }
    old, new, free = (workspace.vectors(job) for job in jobs.values())
    sets = [workspace.training_images(f"{side}:{scenario}", 0) for side in ("old", "new")]
    test = workspace.test_images
    result = DemoResult(
        DemoPlan(scenario, method, *sets, test, recipe, recipe, test),
        {role: workspace.model(job) for role, job in jobs.items()},
        evaluate_embeddings(test.labels, old=old, new=new, free=free),
        told_story(),
    )
    write_report(result, out / DEMO)
    return [out / BENCHMARK, out / DEMO]


# One test for all pages and views: parallel test processes would each train the models again.
def test_the_reports_in_a_browser(browser, pages):
    problems = [
        f"{path.name}, {width} px, {scheme}: {problem}"
        for path in pages
        for width, scheme in VIEWS
        for problem in _problems(browser, path, width, scheme)
    ]
    assert not problems, "\n".join(problems)


def _problems(browser: Browser, path: Path, width: int, scheme: str) -> list[str]:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said: list[str] = []
    page.on("console", lambda message: message.type == "error" and said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url))
    page.goto(path.as_uri())
    problems = [*_layout(page), *_pictures(page), *_links(page)]
    if path.name == BENCHMARK and page.locator("nav a").count() < 6:
        problems.append("hardly any navigation")
    problems += _tables(page, narrow=width < 500)
    problems += _colours(page, scheme)  # the last check, because it adds to the page
    page.close()
    return problems + [f"loads or says: {text}" for text in said if not _is_own(text, path)]


def _is_own(url: str, path: Path) -> bool:
    return url.startswith("data:") or url.split("#")[0] == path.as_uri()


def _layout(page: Page) -> list[str]:
    """Check that the page never scrolls sideways and that every heading is visible."""
    wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    hidden = ask(
        page,
        """
        const headings = all("h1, h2, h3, summary");
        const seen = h => h.checkVisibility() && h.offsetHeight > 0 && h.textContent.trim();
        const inside = h => h.getBoundingClientRect().right <= innerWidth;
        const bad = headings.filter(h => !seen(h) || !inside(h)).map(named);
        headings.length < 5 ? ["few headings: " + headings.length] : bad
        """,
    )
    too_wide = [f"the page is {wide} px too wide"] if wide > 0 else []
    return too_wide + [f"heading not visible: {h}" for h in hidden]


def _colours(page: Page, scheme: str) -> list[str]:
    """Check that the page follows the scheme and that every text and verdict is readable."""
    lightness = page.evaluate(f"() => {{ {HELPERS} return luminance(background(document.body)); }}")
    wrong = lightness < 0.8 if scheme == "light" else lightness > 0.05
    faint = ask(
        page,
        f"""
        const verdicts = ["compatible", "not-compatible", "within-noise"];
        const original = document.querySelector(".plain-table td[class*=is-], .badge");
        for (const verdict of verdicts) {{
          const copy = original.cloneNode(true);
          copy.className = copy.tagName === "TD" ? "is-" + verdict : "badge " + verdict;
          original.after(copy);
        }}
        const texts = all("body *").filter(e => e.checkVisibility() && !e.closest("svg")
          && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
        const labels = all("svg text").filter(e => !/^\\d+\\.\\d$/.test(e.textContent.trim()));
        const bad = [...texts.filter(e => contrast(e) < {CONTRAST}),
          ...labels.filter(e => contrast(e, "fill") < {CONTRAST})].map(named);
        const there = verdicts.filter(v => !document.querySelector(`.is-${{v}}, .badge.${{v}}`));
        [...bad, ...there.map(v => "no example of " + v), ...(labels.length ? [] : ["no labels"])]
        """,
    )
    return ([f"the page is not {scheme}"] if wrong else []) + [f"faint: {text}" for text in faint]


def _pictures(page: Page) -> list[str]:
    """Check that every picture decodes and is shown."""
    bad = ask(
        page,
        """
        const size = e => e.getBoundingClientRect();
        const shown = e => size(e).width > 10 && size(e).height > 10 && size(e).right <= innerWidth;
        const broken = e => e.tagName === "IMG" && !(e.complete && e.naturalWidth > 0);
        const pictures = all("img, svg");
        const bad = pictures.filter(e => broken(e) || !shown(e)).map(e => e.outerHTML.slice(0, 60));
        all("img").length && all("svg").length > 1 ? bad : ["too few pictures"]
        """,
    )
    return [f"picture: {text}" for text in bad]


def _links(page: Page) -> list[str]:
    """Check that each link leads to a heading which the navigation does not cover."""
    bad = ask(
        page,
        """
        const bad = [];
        for (const link of all("nav a")) {
          const target = document.getElementById(link.hash.slice(1));
          target?.scrollIntoView();
          const bar = document.querySelector("nav").getBoundingClientRect();
          const top = target?.getBoundingClientRect().top;
          if (!target) bad.push("to nowhere: " + named(link));
          else if (bar.top < 0 || bar.height > 120) bad.push("the navigation is out of place");
          else if (top < bar.bottom || top > innerHeight) bad.push("to a hidden " + named(target));
        }
        bad
        """,
    )
    return [f"link {text}" for text in bad]


def _tables(page: Page, *, narrow: bool) -> list[str]:
    """Check that tables scroll in their boxes, keep their first column, and are aligned."""
    bad = ask(
        page,
        """
        const bad = [];
        for (const box of all(".scroll")) {
          box.scrollLeft = 1e6;
          box.dataset.moved = box.scrollLeft;
          const left = box.getBoundingClientRect().left;
          for (const cell of all("tr > :first-child", box))
            if (Math.abs(cell.getBoundingClientRect().left - left) > 1) bad.push(named(cell));
          for (const cell of all("th", box))
            if (cell.firstChild && !/ /.test(cell.firstChild.data)) {
              const range = document.createRange();
              range.selectNodeContents(cell.firstChild);
              if (range.getClientRects().length > 1) bad.push("broken: " + named(cell));
            }
          for (const cell of all("td", box)) {
            const side = getComputedStyle(cell).textAlign;
            const text = cell.firstChild?.data ?? "";
            const wanted = /^[-+\\d]/.test(text) ? "right" : text === "—" ? side : "left";
            if (side !== wanted) bad.push(`${side}: ` + named(cell));
          }
        }
        bad
        """,
    )
    moved = page.evaluate("[...document.querySelectorAll('.scroll')].map(b => +b.dataset.moved)")
    if narrow and not any(moved):
        bad.append("nothing scrolls on a narrow screen")
    return [f"table: {text}" for text in bad] + _layout(page)
