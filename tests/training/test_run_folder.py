import pytest

from tests.training.recipes import RECIPE
from unibct.errors import UserError
from unibct.training.train import train


def test_a_foreign_folder_is_never_touched(split_images, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "metrics.csv").write_text("mine too")
    with pytest.raises(UserError, match="exists already"):
        train(split_images[0], RECIPE, tmp_path, resume=True, device="cpu")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.csv", "notes.txt"]
    assert (tmp_path / "metrics.csv").read_text() == "mine too"


def test_leftovers_of_a_killed_process_neither_block_nor_stay(split_images, old_model, tmp_path):
    out = tmp_path / "m"
    (out / ".old_embeddings").mkdir(parents=True)
    (out / ".checkpoint-00001-00000000.tmp").mkdir()
    (out / ".metrics.csv.y2.tmp").write_text("half")
    options = {"old": old_model, "resume": True, "device": "cpu"}
    first = train(split_images[1], RECIPE, out, **options)
    finished = ["classifier.safetensors", "metrics.csv", "model.json", "model.safetensors"]
    assert sorted(p.name for p in out.iterdir()) == finished
    (out / "checkpoint-00003-00000000").mkdir()  # killed before it was removed
    (out / ".old_embeddings").mkdir()
    assert train(split_images[1], RECIPE, out, **options).fingerprint == first.fingerprint
    assert sorted(p.name for p in out.iterdir()) == finished
