import numpy as np
import pytest

from tests.benchmark.embedded_jobs import jobs_of
from tests.notes import Notes, show
from unibct import progress
from unibct.benchmark.grid import make_grid
from unibct.benchmark.run import plan_benchmark
from unibct.data.convert import convert
from unibct.data.readers import open_images
from unibct.errors import UserError
from unibct.progress import Silent
from unibct.training.recipe import load_recipe


def test_bad_grids_are_refused_before_any_work(photo_folder):
    with pytest.raises(UserError, match="unknown scenario"):
        make_grid(scenarios=["closed"])
    with pytest.raises(UserError, match=r"unknown method 'magic'.*procrustes.*all, paper"):
        make_grid(methods=["magic"])
    with pytest.raises(UserError, match="unknown method 'paper'; choose one of none, reg"):
        make_grid(chain=["paper"])
    with pytest.raises(UserError, match="leaves none of 2 epochs"):
        make_grid(recipe=load_recipe("glyphs", ["epochs=2", "warmup_epochs=2"]))
    with pytest.raises(UserError, match="give the trials' seeds with --seeds"):
        make_grid(recipe=load_recipe("glyphs", ["seed=3"]))
    with pytest.raises(UserError, match="no upgrade chain"):
        make_grid(chain=["procrustes"])
    with pytest.raises(UserError, match="classes in common"):
        make_grid(str(photo_folder), test=str(photo_folder)).open()
    with pytest.raises(UserError, match="larger network than resnet50"):
        jobs_of(recipe=load_recipe("glyphs", ["architecture=resnet50"]))


def test_a_text_in_place_of_a_list_is_explained():
    for option in ("methods", "scenarios", "chain"):
        with pytest.raises(UserError, match=rf"{option} is a list of names, such as \['unibct'\]"):
            make_grid(**{option: "unibct"})


def test_a_wrong_name_is_answered_by_a_map_or_a_group_too():
    with pytest.raises(UserError, match="unknown method 'procrust', did you mean 'procrustes'"):
        make_grid(methods=["procrust"])


def test_cells_that_cannot_be_are_noted_and_a_grid_of_them_is_refused(tmp_path):
    notes = Notes()
    for methods in (["bct"], ["bct", "bct@warmup_epochs=0"]):
        grid = make_grid(scenarios=["open-class"], methods=methods, chain=[])
        with pytest.raises(UserError, match=r"no bct in open-class.*nothing can be run.*knows"):
            plan_benchmark(grid, tmp_path, read_images=False, device="cpu")
    grid = make_grid(scenarios=["open-class", "open-data"], methods=["bct", "none"], chain=[])
    with progress.shown(notes):
        plan_benchmark(grid, tmp_path, read_images=False, device="cpu")
    (told,) = (text for text in notes.texts if "bct" in text)
    assert told.startswith("there is no bct in open-class: the method works only where")


def test_files_that_only_number_their_classes_can_be_train_and_test(tmp_path, photo_folder):
    photos = open_images(str(photo_folder))
    names = {"train": photos.labels < 8, "test": photos.labels >= 8}
    for name, chosen in names.items():
        convert(photos.select(np.flatnonzero(chosen)), tmp_path / name, to="recordio")
        (tmp_path / name / "classes.txt").unlink()
    data, test = (str(tmp_path / name) for name in names)
    train_set, test_set = make_grid(data, test=test).open()
    assert set(train_set.class_names) & set(test_set.class_names)
    with pytest.raises(UserError, match="classes in common"):
        make_grid(data, test=data).open()
    notes = []
    said = Silent()
    said.note = notes.append
    show(said)
    grid = make_grid(data, test=test, quick=True)
    plan_benchmark(grid, tmp_path / "out", read_images=False, device="cpu")
    assert [note for note in notes if "cannot be checked" in note]


def test_without_a_test_set_a_part_of_the_classes_is_held_out(photo_folder):
    train, test = make_grid(str(photo_folder)).open()
    assert len(test.class_names) == 3
    assert len(train.class_names) == 9
    assert not set(train.class_names) & set(test.class_names)


def test_too_few_classes_to_hold_some_out_are_refused(unseen_folder):
    with pytest.raises(UserError, match=r"has 8 classes; to hold some out .* give test images"):
        make_grid(str(unseen_folder)).open()
