"""A folder with the results of the main commands, for the tests of all commands."""

import pytest

from tests.conftest import TINY_OPTIONS, run_command


def sides(query, gallery):
    """The options of ``evaluate`` for who searches what."""
    return ["--query", query, "--gallery", gallery]


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory, photo_folder):
    """A split, an old and a new model, and the embeddings of both, from five commands.

    The models are trained on six of twelve classes.
    """
    root = tmp_path_factory.mktemp("trained")
    split = ["--hold-out", 0.5, "--scenario", "open-class", "--fraction", 0.4]
    split += ["--out", root / "split"]
    assert run_command("split", photo_folder, *split) == 0
    # Where no model is given, raw pixels are compared at 32, so the models take that size, too.
    train = ["train", photo_folder, "--device", "cpu", *TINY_OPTIONS, "--set", "size=32"]
    assert run_command(*train, "--images", root / "split/old.txt", "--out", root / "old") == 0
    new = ["--images", root / "split/new.txt", "--old", root / "old", "--method", "unibct"]
    assert run_command(*train, *new, "--out", root / "new") == 0
    assert run_command("embed", root / "new", photo_folder, "--out", root / "emb/new") == 0
    assert run_command("embed", root / "old", photo_folder, "--out", root / "emb/old") == 0
    return root
