import pytest

from tests.benchmark.embedded_jobs import jobs_of
from unibct.benchmark.grid import make_grid
from unibct.errors import UserError
from unibct.training.recipe import load_recipe


def test_bad_grids_are_refused_before_any_work(photo_folder):
    with pytest.raises(UserError, match="unknown scenario"):
        make_grid(scenarios=["closed"])
    with pytest.raises(UserError, match=r"unknown method 'magic'.*procrustes.*or paper, or all"):
        make_grid(methods=["magic"])
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


def test_without_a_test_set_a_part_of_the_classes_is_held_out(photo_folder):
    train, test = make_grid(str(photo_folder)).open()
    assert len(test.class_names) == 3
    assert len(train.class_names) == 9
    assert not set(train.class_names) & set(test.class_names)


def test_too_few_classes_to_hold_some_out_are_refused(unseen_folder):
    with pytest.raises(UserError, match=r"has 8 classes; to hold some out .* give test images"):
        make_grid(str(unseen_folder)).open()
