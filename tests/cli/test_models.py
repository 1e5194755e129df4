import json
import shutil

import numpy as np
import pytest

from tests.cli.conftest import sides
from tests.conftest import TINY_OPTIONS, run_command
from unibct.data.readers import open_images
from unibct.embedders import open_embedder
from unibct.embeddings.store import open_embeddings
from unibct.errors import UserError
from unibct.models.model_folder import load_model


@pytest.mark.slow
def test_models_and_embeddings_belong_together(trained_folder, photo_folder):
    new, old = load_model(trained_folder / "new"), load_model(trained_folder / "old")
    assert new.old_fingerprint == old.fingerprint
    assert len(new.class_names) == 4
    stored = open_embeddings(trained_folder / "emb/new")
    assert stored.fingerprint == new.fingerprint
    paths = [photo_folder / name for name in stored.ids[:20]]
    assert np.allclose(new.embed(paths), stored.vectors[:20], atol=1e-5)


@pytest.mark.slow
def test_an_empty_out_folder_stays_usable_after_an_error(
    trained_folder, photo_folder, tmp_path, capsys
):
    out = tmp_path / "empty"
    out.mkdir()
    train = ["train", photo_folder, "--old", trained_folder / "old", "--out", out]
    train += ["--device", "cpu", *TINY_OPTIONS]
    assert run_command(*train, "--method", "bct") == 2
    assert run_command(*train, "--set", "lr=1e30") == 2
    assert [p.name for p in out.iterdir()] == [".old_embeddings"]  # kept for the next run
    assert run_command(*train) == 0


def test_old_and_new_model_start_from_different_seeds(trained_folder):
    models = [load_model(trained_folder / name) for name in ("old", "new")]
    assert [model.training["recipe"]["seed"] for model in models] == [0, 1]


@pytest.mark.usefixtures("short_maps")
@pytest.mark.parametrize(
    "kind", ["procrustes", "linear", pytest.param("mlp", marks=pytest.mark.slow)]
)
def test_adapt_writes_a_model_that_every_command_takes(
    trained_folder, photo_folder, tmp_path, kind
):
    out = tmp_path / "adapted"
    models = ["--new", trained_folder / "new", "--old", trained_folder / "old"]
    lists = {name: ["--images", trained_folder / f"split/{name}.txt"] for name in ("train", "test")}
    adapt = ["adapt", photo_folder, *lists["train"], *models, "--kind", kind]
    assert run_command(*adapt, "--out", out) == 0
    adapted, new, old = (
        load_model(path) for path in (out, trained_folder / "new", trained_folder / "old")
    )
    assert adapted.old_fingerprint == old.fingerprint
    assert adapted.fingerprint != new.fingerprint
    images = open_images(str(photo_folder))
    pixels = [images.read(image_id) for image_id in images.ids[:5]]
    assert np.allclose(adapted.embed(pixels), adapted.vector_map(new.embed(pixels)), atol=1e-6)
    assert not np.allclose(adapted.embed(pixels), new.embed(pixels), atol=0.01)
    evaluate = ["evaluate", photo_folder, *sides(out, trained_folder / "old")]
    assert run_command(*evaluate, *lists["test"]) == 0
    again = run_command("adapt", photo_folder, *models, "--out", out)
    assert again == 2, "it never writes over a model"


def test_adapt_refuses_an_unknown_kind_and_a_model_that_is_adapted_already(
    trained_folder, photo_folder, tmp_path, capsys
):
    both = ["--new", trained_folder / "new", "--old", trained_folder / "old"]
    adapt = ["adapt", photo_folder, *both]
    assert run_command(*adapt, "--kind", "magic", "--out", tmp_path / "a") == 2
    assert "choose one of procrustes, linear, mlp" in capsys.readouterr().err
    assert run_command(*adapt, "--out", tmp_path / "b") == 0
    twice = ["--new", tmp_path / "b", "--old", trained_folder / "old"]
    assert run_command("adapt", photo_folder, *twice, "--out", tmp_path / "c") == 2
    assert "adapted already" in capsys.readouterr().err


def test_a_damaged_map_is_found_out(trained_folder, photo_folder, tmp_path):
    both = ["--new", trained_folder / "new", "--old", trained_folder / "old"]
    adapt = ["adapt", photo_folder, *both]
    assert run_command(*adapt, "--out", tmp_path / "a") == 0
    assert run_command(*adapt, "--kind", "procrustes", "--out", tmp_path / "b") == 0
    shutil.copy(tmp_path / "b/adapter.safetensors", tmp_path / "a/adapter.safetensors")
    with pytest.raises(UserError, match="fingerprint"):
        load_model(tmp_path / "a")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "npy", "safetensors"])
def test_embed_writes_every_form_and_evaluate_reads_it(
    form, trained_folder, photo_folder, tmp_path, capsys
):
    out = tmp_path / f"new.{form}"
    embed = ["embed", trained_folder / "new", photo_folder, "--to", form, "--out", out]
    assert run_command(*embed) == 0
    stored, written = open_embeddings(trained_folder / "emb/new"), open_embedder(out).embeddings
    assert np.array_equal(np.asarray(stored.vectors), written.vectors)
    assert (stored.ids, stored.fingerprint) == (written.ids, written.fingerprint)
    assert not list(tmp_path.glob(".*"))
    capsys.readouterr()
    results = []
    for query in (trained_folder / "emb/new", f"embeddings:{out}"):
        test = ["--images", trained_folder / "split/test.txt", "--json"]
        both = sides(query, trained_folder / "emb/old")
        assert run_command("evaluate", photo_folder, *both, *test) == 0
        results.append(json.loads(capsys.readouterr().out)["tests"])
    assert results[0] == results[1]
    assert run_command(*embed) == 2
    assert "exists already" in capsys.readouterr().err
    assert run_command(*embed[:-1], tmp_path / f"x.{form}", "--dtype", "float16") == 2
    assert run_command(*embed[:-1], tmp_path / "x.bin") == 2
    error = capsys.readouterr().err
    assert "must end in" in error
    assert "embedding" not in error  # refused before the work


@pytest.mark.slow
def test_a_black_box_is_an_old_model_for_every_command(
    trained_folder, photo_folder, tmp_path, capsys
):
    old = "python:tests.embedders.networks:Flattening"
    assert run_command("embed", old, photo_folder, "--out", tmp_path / "emb") == 0
    train = ["train", photo_folder, "--device", "cpu", *TINY_OPTIONS, "--set", "epochs=2"]
    new = tmp_path / "new"
    assert run_command(*train, "--old", old, "--method", "contrast", "--out", new) == 0
    assert load_model(new).old_fingerprint == "stated by the object"
    assert load_model(new).dim == 18
    assert run_command("evaluate", photo_folder, *sides(new, old), "--seen-classes") == 0
    for options in (["--method", "bct"], ["--warm-start"]):
        assert run_command(*train, "--old", old, *options, "--out", tmp_path / "no") == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert "bct uses the old model's classifier" in errors[0]
    assert "warm_start begins from the old model's weights" in errors[1]


@pytest.mark.slow
def test_a_new_model_of_another_dimension_searches_the_old_gallery(
    trained_folder, photo_folder, tmp_path, capsys
):
    new = tmp_path / "new"
    train = ["train", photo_folder, "--device", "cpu", *TINY_OPTIONS, "--set", "epochs=2"]
    train += ["--old", trained_folder / "old", "--set", "dim=160"]
    assert run_command(*train, "--out", new) == 0
    assert "dimension 160" in capsys.readouterr().out
    evaluate = ["evaluate", photo_folder, "--seen-classes", "--gallery", trained_folder / "old"]
    assert run_command(*evaluate, "--query", new) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "the new model has dimension 160 and the old one 128" in text
    assert "new→new uses its full vectors" in text
    assert run_command("embed", f"{new}?space=old", photo_folder, "--out", tmp_path / "emb") == 0
    assert open_embeddings(tmp_path / "emb").vectors.shape[1] == 128
    assert run_command(*evaluate, "--query", tmp_path / "emb") == 0
    assert run_command("embed", new, photo_folder, "--out", tmp_path / "full") == 0
    capsys.readouterr()
    for query, gallery, message in (
        (tmp_path / "full", trained_folder / "old", "one cannot search the other"),
        (new, trained_folder / "new", "leads into the space of model"),
    ):
        assert run_command("evaluate", photo_folder, *sides(query, gallery)) == 2
        assert message in capsys.readouterr().err
    maps = ["--new", new, "--old", trained_folder / "old", "--out", tmp_path / "map"]
    assert run_command("adapt", photo_folder, *maps) == 2
    assert "has a projection into the space" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "needed"),
    [(["--method", "contrast"], False), (["--method", "bct"], True), (["--warm-start"], True)],
)
def test_train_loads_the_old_classifier_only_if_it_is_needed(
    options, needed, trained_folder, photo_folder, tmp_path, monkeypatch
):
    given = []

    def load(path, **arguments):
        given.append(arguments)
        raise UserError("seen enough")

    monkeypatch.setattr("unibct.embedders.own.load_model", load)
    line = ["train", photo_folder, "--out", tmp_path / "m", "--old", trained_folder / "old"]
    assert run_command(*line, *options) == 2
    assert [arguments["with_classifier"] for arguments in given] == [needed]


@pytest.mark.slow
def test_validation_is_an_option_of_train(photo_folder, tmp_path, capsys):
    line = ["train", photo_folder, "--out", tmp_path / "m", *TINY_OPTIONS, "--set", "epochs=1"]
    assert run_command(*line, "--validation", "1.5") == 2
    assert "validation = 1.5: write the share of the classes" in capsys.readouterr().err
    assert run_command(*line, "--validation", "0.25") == 0
    said = capsys.readouterr().err
    assert "3 of 12 classes (36 images) are set aside to measure recall@1" in said
    assert "epoch 1 of 1: loss " in said
    assert (tmp_path / "m" / "best" / "model.json").is_file()


@pytest.mark.slow
def test_train_says_which_recipe_it_chose_and_names_every_recipe_in_its_help(
    tmp_path, photo_folder, capsys
):
    train = ["train", photo_folder, "--out", tmp_path / "m", "--device", "cpu", *TINY_OPTIONS]
    train += ["--set", "size=32"]
    assert run_command(*train, "--set", "lr=-1") == 2
    assert "recipe glyphs: lr" in capsys.readouterr().err
    assert run_command(*train, "--set", "epochs=1", "--set", "warmup_epochs=0") == 0
    err = capsys.readouterr().err
    assert err.count("recipe glyphs (resnet-small on 32×32 grey): 144 grey images") == 1
    named = [*train[:3], tmp_path / "n", *train[4:], "--recipe", "glyphs", "--set", "epochs=1"]
    assert run_command(*named) == 0
    assert "recipe glyphs (" not in capsys.readouterr().err
