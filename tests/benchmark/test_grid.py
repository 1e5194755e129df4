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
    for message, choices in (
        ("unknown scenario", {"scenarios": ["closed"]}),
        (r"unknown method 'magic'; choose one of none.*lce, .*procrustes", {"methods": ["magic"]}),
        ("unknown method 'procrust', did you mean 'procrustes'", {"methods": ["procrust"]}),
        ("there is no setting 'warmup'", {"methods": ["unibct@warmup=0"]}),
        ("unknown method 'paper'; choose one of none, reg", {"chain": ["paper"]}),
        ("no upgrade chain", {"chain": ["procrustes"]}),
        ("no upgrade chain", {"chain": ["none"]}),
        ("leaves none of 2 epochs", {"recipe": ("epochs=2", "warmup_epochs=2")}),
        ("give the seeds of the trials as seeds", {"recipe": ("seed=3",)}),
        ("seeds are numbers from 0 up", {"seeds": [-1]}),
        *(
            (rf"{option} is a list of names, such as \['unibct'\]", {option: "unibct"})
            for option in ("methods", "scenarios", "chain")
        ),
    ):
        if "recipe" in choices:
            choices["recipe"] = load_recipe("glyphs", choices["recipe"])
        with pytest.raises(UserError, match=message):
            make_grid(**choices)
    with pytest.raises(UserError, match="classes in common"):
        make_grid(str(photo_folder), test=str(photo_folder)).open()
    with pytest.raises(UserError, match="larger network than resnet50"):
        jobs_of(recipe=load_recipe("glyphs", ["architecture=resnet50"]))


def test_the_methods_by_default_are_the_papers_and_ours():
    assert make_grid().methods == (
        "none", "regress", "contrast", "bct", "unibct-centroid", "unibct-drop", "unibct",
        "unibct-plus",
    )  # fmt: skip
    assert make_grid().chain_methods == ("unibct", "unibct-plus")
    assert make_grid(quick=True).chain_methods == ()


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
