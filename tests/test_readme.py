"""The README's examples run: Python blocks as they stand, command lines on a small folder."""

import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import TINY_OPTIONS, run_command

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(text: str) -> list[tuple[str, str]]:
    return re.findall(r"```(\w+)\n(.*?)```", text, flags=re.DOTALL)


BLOCKS = blocks(README)


@pytest.mark.slow
def test_python_blocks_run(tmp_path, monkeypatch, photo_folder):
    monkeypatch.chdir(tmp_path)
    scaling = blocks((ROOT / "docs" / "scaling.md").read_text(encoding="utf-8"))
    code = [text for language, text in [*BLOCKS, *scaling] if language == "python"]
    assert len(code) > 3
    names: dict[str, object] = {"__name__": "__main__"}
    for text in code:
        exec(compile(text.replace("DATA", str(photo_folder)), "README.md", "exec"), names)


@pytest.mark.slow
def test_command_lines_run(tmp_path, monkeypatch, photo_folder):
    monkeypatch.chdir(tmp_path)
    text = "\n".join(text for language, text in BLOCKS if language == "sh")
    lines = [line.split("  #")[0] for line in text.splitlines() if line.startswith("unibct ")]
    commands = [shlex.split(line)[1:] for line in lines]
    assert {command[0] for command in commands} >= {"split", "train", "embed", "evaluate"}
    for command in commands:
        if command[0] == "demo":  # minutes; tests/examples/test_demo.py runs it on fewer images
            continue
        arguments = [str(photo_folder) if part == "DATA" else part for part in command]
        if command[0] == "benchmark" and "--dry-run" not in command:
            arguments.append("--dry-run")  # tests/benchmark runs small ones
        if command[0] in ("train", "benchmark"):
            arguments += TINY_OPTIONS
        assert run_command(*arguments) == 0, command


@pytest.mark.parametrize("path", re.findall(r"\]\(((?!http)[^)#]+)\)", README))
def test_links_lead_somewhere(path):
    assert (ROOT / path).exists()
