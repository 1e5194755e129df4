import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.cli.conftest import sides
from tests.conftest import run_command
from tests.models.cases import small_model, trained_from
from unibct.embeddings.forms import write_embeddings
from unibct.embeddings.store import open_embeddings
from unibct.maps.space_map import load_map
from unibct.models.model_folder import load_model, save_model


@pytest.fixture(scope="module")
def files(trained_folder, tmp_path_factory):
    """The embeddings of both models as files."""
    root = tmp_path_factory.mktemp("files")
    for side, form in (("new", "parquet"), ("old", "npy")):
        stored = open_embeddings(trained_folder / "emb" / side)
        write_embeddings(stored, root / f"{side}.{form}", form)
    return root


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["backward", "forward"])
def test_two_files_and_nothing_else(direction, files, tmp_path, capsys):
    both = ["--new", f"embeddings:{files}/new.parquet", "--old", f"embeddings:{files}/old.npy"]
    out = tmp_path / "map"
    fit = ["adapt", *both, "--kind", "affine", "--direction", direction, "--out", out]
    assert run_command(*fit) == 0
    assert f"{direction} affine map" in capsys.readouterr().out
    source, target = ("new.parquet", "old.npy")[:: 1 if direction == "backward" else -1]
    mapped = tmp_path / "mapped.safetensors"
    apply = ["map", out, files / source, "--to", "safetensors"]
    assert run_command(*apply, "--out", mapped) == 0
    fingerprint = load_map(out).fingerprint
    assert fingerprint.encode() in mapped.read_bytes()
    assert run_command("map", out, files / target, "--out", tmp_path / "no") == 2
    assert "in the space that this map leads to" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
    known = ["--known", files / target, "--out", tmp_path / "again"]
    assert run_command("map", out, files / source, *known) == 0


def test_an_upgrade_without_images(files, photo_folder, tmp_path, capsys):
    """New queries search the old gallery's rows after a forward map."""
    both = ["--new", files / "new.parquet", "--old", files / "old.npy"]
    out = tmp_path / "map"
    assert run_command("adapt", photo_folder, *both, "--direction", "forward", "--out", out) == 0
    assert run_command("map", out, files / "old.npy", "--out", tmp_path / "rows") == 0
    capsys.readouterr()
    search = sides(files / "new.parquet", tmp_path / "rows")
    assert run_command("evaluate", photo_folder, *search, "--json", "--seen-classes") == 0
    tests = json.loads(capsys.readouterr().out)["tests"]
    assert np.isfinite(tests["new→old"]["top-1"])


def test_a_list_chooses_the_rows_of_stored_embeddings(files, tmp_path, capsys):
    both = ["--new", f"embeddings:{files}/new.parquet", "--old", f"embeddings:{files}/old.npy"]
    ids = (files / "old.ids.txt").read_text().splitlines()
    (tmp_path / "list.txt").write_text("\n".join(ids[:100]))
    some = ["--images", tmp_path / "list.txt"]
    for name, options in (("all", []), ("some", some)):
        assert run_command("adapt", *both, *options, "--out", tmp_path / name) == 0
    assert load_map(tmp_path / "all").fingerprint != load_map(tmp_path / "some").fingerprint
    assert set(load_map(tmp_path / "some").known.ids) <= set(ids[:100])
    capsys.readouterr()
    (tmp_path / "list.txt").write_text(f"{ids[0]}\nnobody.png")
    assert run_command("adapt", *both, *some, "--out", tmp_path / "none") == 2
    assert "list.txt, line 2: 'nobody.png' has no embedding" in capsys.readouterr().err


def test_without_data_both_sides_must_be_stored(files, trained_folder, tmp_path, capsys):
    both = ["--new", trained_folder / "new", "--old", files / "old.npy"]
    assert run_command("adapt", *both, "--out", tmp_path / "map") == 2
    assert "give DATA" in capsys.readouterr().err
    assert run_command("map", tmp_path, files / "old.npy", "--out", tmp_path / "x") == 2
    assert "is not a map folder" in capsys.readouterr().err


@pytest.fixture
def two_models(tmp_path):
    old = replace(small_model(), class_names=("somebody else",), class_weights=torch.ones(1, 16))
    for name, model in (("old", old), ("new", trained_from(old))):
        save_model(model, tmp_path / name)
    return tmp_path


def test_blended_weights(two_models, capsys):
    blend = ["blend", two_models / "old", two_models / "new"]
    assert run_command(*blend, "--out", two_models / "half") == 0
    said = capsys.readouterr().out
    model = load_model(two_models / "half")
    assert said.endswith(f"0.5 of the new weights, fingerprint {model.fingerprint}\n")
    assert model.training["blended_weights"]["alpha"] == 0.5
    assert run_command(*blend, "--alpha", "1", "--json", "--out", two_models / "end") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["fingerprint"] == load_model(two_models / "new").fingerprint
    assert run_command(*blend, "--out", two_models / "half") == 2
    assert "exists already" in capsys.readouterr().err
    assert run_command(*blend, "--images", "list.txt", "--out", two_models / "no") == 2
    assert "--images lists images of --alpha-from" in capsys.readouterr().err


def test_blended_weights_are_chosen_on_images(two_models, photo_folder, capsys):
    blend = ["blend", two_models / "old", two_models / "new", "--alpha-from", photo_folder]
    assert run_command(*blend, "--json", "--out", two_models / "chosen") == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["alpha"] for one in told["tried"]] == [n / 10 for n in range(1, 11)]
    assert run_command(*blend, "--out", two_models / "again") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("top-1 of old queries in the old gallery: ")
    (chosen,) = [line.split() for line in lines if line.endswith("chosen")]
    assert float(chosen[0]) == told["alpha"]
    assert load_model(two_models / "again").fingerprint == told["fingerprint"]
    assert run_command(*blend, "--alpha", "0.5", "--out", two_models / "no") == 2
    assert "exclude each other" in capsys.readouterr().err
