"""Miniature sets and two models trained on them, for the tests of all protocols."""

import pytest

from tests.conftest import TINY
from unibct import cli
from unibct.examples.miniatures import make_ijbc, make_ms1mv3


def run(*arguments):
    with pytest.raises(SystemExit) as stop:
        cli.main([str(argument) for argument in arguments])
    return stop.value.code


@pytest.fixture(scope="session")
def faces_root(tmp_path_factory):
    """Two miniature sets, and an old and a new model trained on the first."""
    root = tmp_path_factory.mktemp("faces")
    make_ms1mv3(root / "ms1mv3", identities=20, images_each=6)
    make_ijbc(root / "ijbc", subjects=12)
    sets = [a for item in TINY for a in ("--set", item)] + ["--set", "flip=true"]
    assert run("split", root / "ms1mv3", "--scenario", "open-class", "--out", root / "split") == 0
    train = ("train", root / "ms1mv3", "--device", "cpu", *sets)
    old = ("--images", root / "split/old.txt", "--out", root / "old")
    new = ("--images", root / "split/new.txt", "--old", root / "old", "--out", root / "new")
    assert run(*train, *old) == 0
    assert run(*train, *new) == 0
    return root
