"""Miniature sets and two models trained on them, for the tests of all protocols."""

import pytest
from measurements.miniatures import make_ijbc, make_ms1mv3

from tests.conftest import TINY_OPTIONS, run_command


@pytest.fixture(scope="session")
def faces_root(tmp_path_factory):
    """Two miniature sets, and an old and a new model trained on the first."""
    root = tmp_path_factory.mktemp("faces")
    make_ms1mv3(root / "ms1mv3", identities=20, images_each=6)
    make_ijbc(root / "ijbc", subjects=12)
    split = ("--scenario", "open-class", "--out", root / "split")
    assert run_command("split", root / "ms1mv3", *split) == 0
    settings = ("--recipe", "glyphs", *TINY_OPTIONS, "--set", "flip=true")
    train = ("train", root / "ms1mv3", "--device", "cpu", *settings)
    old = ("--images", root / "split/old.txt", "--out", root / "old")
    new = ("--images", root / "split/new.txt", "--old", root / "old", "--out", root / "new")
    assert run_command(*train, *old) == 0
    assert run_command(*train, *new) == 0
    return root
