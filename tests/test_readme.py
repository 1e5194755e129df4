"""Examples of README and docs run, their links lead somewhere, their numbers are the report's."""

import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import TINY, TINY_OPTIONS, run_command
from tests.gallery.oracles import NEW_ORACLE, OLD_ORACLE
from unibct.data.readers import open_images
from unibct.training.recipe import load_recipe

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDES = (
    "README.md",
    "docs/guide.md",
    "docs/evaluation.md",
    "docs/benchmark.md",
    "docs/backbones.md",
    "docs/export.md",
    "docs/any-model.md",
    "docs/maps.md",
)


def text_of(path: Path | str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def blocks(path: Path | str, language: str) -> list[str]:
    """The code blocks of one language in a page."""
    return re.findall(rf"```{language}\n(.*?)```", text_of(path), flags=re.DOTALL)


def test_ci_runs_the_test_command_of_the_readme():
    (command,) = re.findall(r"^    (make test\S*) ", text_of("README.md"), flags=re.MULTILINE)
    assert text_of(".ci/run").splitlines()[-1] == command


def folder_of_classes(root: Path, first: int, stop: int) -> Path:
    """A folder of images of some classes that DATA does not have."""
    images = open_images("glyphs:val")
    for row in np.flatnonzero((first <= images.labels) & (images.labels < stop)):
        folder = root / f"other class {images.labels[row]}"
        folder.mkdir(exist_ok=True)
        Image.fromarray(images.read(images.ids[row])).save(folder / f"{row:05}.png")
    return root


@pytest.fixture(scope="module")
def unseen_classes(tmp_path_factory):
    """What the pages call TEST or OTHERS."""
    return folder_of_classes(tmp_path_factory.mktemp("test images"), 0, 8)


@pytest.fixture(scope="module")
def validation_classes(tmp_path_factory):
    """What the pages call VALIDATION: further classes."""
    return folder_of_classes(tmp_path_factory.mktemp("validation images"), 8, 12)


@pytest.mark.slowest
def test_python_blocks_run(tmp_path, monkeypatch, photo_folder, unseen_classes):
    monkeypatch.chdir(tmp_path)
    code = [*blocks("docs/python.md", "python"), *blocks("docs/scaling.md", "python")]
    assert len(code) > 3
    names: dict[str, object] = {"__name__": "__main__"}
    for text in code:
        text = text.replace("DATA", str(photo_folder)).replace("TEST", str(unseen_classes))
        exec(compile(text, "docs", "exec"), names)


@pytest.mark.slowest
def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, photo_folder):
    """With a short recipe, and a gallery that does not ask whether these models are any good."""
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("README.md", "python")
    assert len([line for line in code.splitlines() if line]) <= 14
    short = code.replace("DATA", str(photo_folder)).replace(", None,", ", recipe,")
    short = short.replace('["upgrade.json"]', "force=True").replace("labels, 0.3", "labels, 0.4")
    short = short.replace('"G", "models/old"', '"G", "models/old", known=0')
    assert [short.count(word) for word in ("recipe,", "force=True", "known=0")] == [2, 1, 1]
    exec(compile(short, "README.md", "exec"), {"recipe": load_recipe("glyphs", TINY)})
    assert Path("upgrade.json").is_file()


@pytest.mark.slowest
def test_command_lines_run(
    tmp_path, monkeypatch, photo_folder, unseen_classes, validation_classes, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("my_network.py").write_text(blocks("docs/backbones.md", "python")[0])
    Path("my_old.py").write_text(blocks("docs/any-model.md", "python")[0])
    text = "\n".join(block for page in GUIDES for block in blocks(page, "sh"))
    lines = [line.split("  #")[0] for line in text.splitlines() if line.startswith("unibct ")]
    commands = [shlex.split(line)[1:] for line in lines]
    assert {command[0] for command in commands} >= {
        "split", "train", "evaluate", "embed", "convert", "adapt", "map", "benchmark",
        "export", "card", "gallery", "blend",
    }  # fmt: skip
    folders = {"DATA": str(photo_folder), "VALIDATION": str(validation_classes)} | dict.fromkeys(
        ("OTHERS", "TEST"), str(unseen_classes)
    )
    for command in commands:
        output = command[-1] if ">" in command else None
        command = command[: -2 if output else None]
        arguments = [folders.get(part, part) for part in command]
        if command[0] == "benchmark" and "--dry-run" not in command:
            arguments.append("--dry-run")  # tests/benchmark runs small ones
        if command[0] in ("train", "benchmark"):
            arguments += TINY_OPTIONS
        # What these models find is no reason to let them search; tests/gallery has better ones.
        if command[:2] == ["gallery", "upgrade"]:
            arguments.append("--force")
        if command[:2] == ["gallery", "create"]:
            arguments += ["--known", "0"]
        if command[0] == "split":  # of 12 classes; a certificate needs four
            arguments = ["0.4" if word == "0.3" else word for word in arguments]
        capsys.readouterr()
        assert run_command(*arguments) == 0, command
        if output is not None:
            Path(output).write_text(capsys.readouterr().out)


@pytest.mark.slowest
def test_the_tutorial_of_the_gallery_runs(tmp_path, monkeypatch, capsys):
    """Its models are trained by the demo; here others stand in that need no training."""
    monkeypatch.chdir(tmp_path)
    models = {"models/old": OLD_ORACLE, "models/new": NEW_ORACLE}
    printed: dict[str, str] = {}
    for line in "".join(blocks("docs/gallery.md", "sh")).splitlines():
        command = line.split("  #")[0].strip()
        words = [models.get(word, word) for word in shlex.split(command)]
        if words[0] == "unibct":
            assert run_command(*words[1:]) == 0, command
            printed[command] = capsys.readouterr().out
        else:
            subprocess.run(command, shell=True, check=True)
    assert {words.split()[2] for words in printed if words.startswith("unibct gallery")} == {
        "create", "add", "search", "upgrade", "status", "backfill", "index", "verify", "rollback",
        "copy",
    }  # fmt: skip
    assert "verdict: compatible" in printed[next(c for c in printed if "--certify" in c)]
    assert "2,497 of 2,497 rows are" in printed["unibct gallery backfill G glyphs:test"]
    assert "2,197 old vectors deleted" in printed["unibct gallery backfill G --finish"]
    (code,) = blocks("docs/gallery.md", "python")
    for name, model in models.items():
        code = code.replace(name, model)
    exec(compile(code, "docs/gallery.md", "exec"), {"__name__": "__main__"})
    assert "right=" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link, anchor in re.findall(r"\]\(((?!http)[^)#]*)(?:#([^)]*))?\)", text_of(page)):
        target = page.parent / link if link else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), f"{link}#{anchor}"


def test_the_claims_name_tests_and_files_that_exist():
    text = text_of("docs/claims.md")
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text))
    assert len(named) > 100
    for path, name in sorted(named):
        assert f"\ndef {name}(" in text_of(path), f"{path}::{name}"
    for path in set(re.findall(r"`(\w+/[\w/.]+\.(?:py|js|jinja))`", text)):
        assert (ROOT / "src/unibct" / path).is_file(), path


def anchors(page: Path) -> set[str]:
    """What links may point to in a page: its headings, as GitHub writes them."""
    prose = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", prose, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def gain_in_report(report, scenario, metric, method):
    """Return the cell of a benchmark's report for one gain over the old self test."""
    part = text_of(report).split(f"## {scenario}: the criterion and its price")[1].split("## ")[0]
    lines = re.findall(r"^\| (.*) \|$", part, flags=re.MULTILINE)
    names, *rows = (line.split(" | ") for line in lines)
    row = next(row for row in rows if row[0] == method)
    return row[names.index(f"{metric}: cross − old self")]


def test_the_readme_quotes_the_reports():
    """Every difference with its interval stands in the report of its images."""
    reports = {
        "faces": "docs/results/faces/report.md",
        "objects": "docs/results/objects/report.md",
        "final": "docs/results/glyphs-final/report.md",
    }
    table = text_of("README.md").split("## What it gives")[1].split("## Read on")[0]
    scenarios = re.findall(r"^\| images, metric: method \| (.*) \|$", table, flags=re.MULTILINE)[0]
    found = re.findall(r"^\| (\w+), (\S+): `(\S+)` \| (.*) \|$", table, flags=re.MULTILINE)
    assert len(found) == 12
    for images, metric, method, cells in found:
        for scenario, cell in zip(scenarios.split(" | "), cells.split(" | "), strict=True):
            assert gain_in_report(reports[images], scenario, metric, method) == cell


def test_the_readme_is_read_in_three_minutes():
    """At 240 words a minute."""
    prose = re.sub(r"```.*?```", "", text_of("README.md"), flags=re.DOTALL)
    prose = re.sub(r"^\|.*$", "", prose, flags=re.MULTILINE)
    assert len(prose.split()) <= 3 * 240
