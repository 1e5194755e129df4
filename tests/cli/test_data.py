import json

from tests.conftest import run_command
from tests.embeddings.random_embeddings import random_embeddings
from unibct.data.readers import open_images
from unibct.embeddings.forms import write_embeddings


def lists(folder, *names):
    """The ids in lists of a split."""
    return [(folder / f"{name}.txt").read_text().splitlines() for name in names]


def test_split_writes_disjoint_lists(trained_folder, photo_folder):
    old, new, train, test = lists(trained_folder / "split", "old", "new", "train", "test")
    assert sorted(old + new) == train
    assert sorted(train + test) == list(open_images(str(photo_folder)).ids)
    assert len({name.split("/")[0] for name in old}) == 2
    described = json.loads((trained_folder / "split/split.json").read_text())
    assert described["scenario"] == "open-class"
    assert described["counts"]["old"] == {"images": len(old), "classes": 2}


def test_split_sets_test_classes_aside(photo_folder, tmp_path, capsys):
    out = ["--out", tmp_path / "split"]
    assert run_command("split", photo_folder, "--hold-out", 0.3, *out) == 0
    printed = capsys.readouterr().out
    assert "train" in printed
    assert "test" in printed
    train, test = lists(tmp_path / "split", "train", "test")
    assert sorted(train + test) == list(open_images(str(photo_folder)).ids)
    classes = [{name.split("/")[0] for name in lines} for lines in (train, test)]
    assert [len(names) for names in classes] == [9, 3]
    assert not classes[0] & classes[1]
    assert run_command("split", photo_folder, "--out", tmp_path / "neither") == 2
    assert "give a scenario, hold_out or both" in capsys.readouterr().err
    ignored = ["--hold-out", 0.3, "--fraction", 0.9, "--out", tmp_path / "ignored"]
    assert run_command("split", photo_folder, *ignored) == 2
    assert "give --scenario too" in capsys.readouterr().err


def test_finished_vectors_are_split_too(tmp_path):
    embeddings = random_embeddings(60, classes=("a", "b", "c", "d"))
    write_embeddings(embeddings, tmp_path / "a.npy", "npy")
    data, out = f"embeddings:{tmp_path / 'a.npy'}", tmp_path / "split"
    assert run_command("split", data, "--hold-out", 0.5, "--out", out) == 0
    train, test = lists(out, "train", "test")
    assert sorted(train + test) == sorted(embeddings.ids)


def test_convert_says_what_it_wrote(photo_folder, tmp_path, capsys):
    out = tmp_path / "records"
    assert run_command("convert", photo_folder, "--to", "recordio", "--out", out) == 0
    images = open_images(out)
    assert images.class_names == open_images(photo_folder).class_names
    assert capsys.readouterr().out == f"{out}: {len(images):,} images as recordio\n"
