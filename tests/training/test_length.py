from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.recipes import SMALL
from unibct.training.length import (
    images_per_epoch,
    length_note,
    steps_per_epoch,
    with_enough_epochs,
)
from unibct.training.recipe import Recipe, load_recipe
from unibct.training.shipped_recipes import shipped_recipes

SIZES = st.integers(min_value=1, max_value=500)


def counted_batches(images: int, batch_size: int) -> list[int]:
    """The sizes of an epoch's batches, dealt out one image at a time."""
    batches: list[int] = []
    for _ in range(images):
        if not batches or batches[-1] == batch_size:
            batches.append(0)
        batches[-1] += 1
    whole = [size for size in batches if size == batch_size]
    return whole or batches


def nearest(value: Fraction) -> int:
    """The nearest whole number, the larger one of two."""
    return max(range(int(value), int(value) + 2), key=lambda n: (-abs(n - value), n))


@given(images=SIZES, batch_size=st.integers(min_value=2, max_value=60))
def test_an_epoch_is_counted_batch_by_batch(images, batch_size):
    batches = counted_batches(images, batch_size)
    assert steps_per_epoch(images, batch_size) == len(batches)
    assert images_per_epoch(images, batch_size) == sum(batches)


@given(
    images=SIZES,
    batch_size=st.integers(min_value=2, max_value=60),
    epochs=st.integers(min_value=1, max_value=40),
    steps=st.integers(min_value=1, max_value=900),
    marks=st.sets(st.integers(min_value=0, max_value=45), max_size=4),
    schedule=st.sampled_from(["cosine", "milestones"]),
)
def test_a_short_training_is_stretched_as_a_whole(
    images, batch_size, epochs, steps, marks, schedule
):
    recipe = Recipe(
        epochs=epochs,
        batch_size=batch_size,
        steps=steps,
        milestones=tuple(sorted(marks)),
        refresh_epochs=tuple(sorted(marks)),
        warmup_epochs=epochs - 1,
        lr_warmup_epochs=epochs / 4,
        schedule=schedule,
    )
    longer = with_enough_epochs(recipe, images)
    in_an_epoch = len(counted_batches(images, batch_size))
    enough = epochs
    while enough * in_an_epoch < steps:
        enough += 1
    assert longer.epochs == enough
    factor = Fraction(enough, epochs)
    expected = tuple(nearest(mark * factor) for mark in sorted(marks))
    assert longer.milestones == longer.refresh_epochs == expected
    assert longer.warmup_epochs == nearest((epochs - 1) * factor) < enough
    assert longer.lr_warmup_epochs == pytest.approx(float(factor) * epochs / 4)
    if schedule == "cosine":
        for share in (0.0, 0.1, 0.5, 0.9):
            rate = longer.learning_rate(share * enough)
            assert rate == pytest.approx(recipe.learning_rate(share * epochs))
    assert with_enough_epochs(longer, images) == longer


def test_nothing_changes_without_steps_or_with_enough_of_them():
    assert SMALL.steps is None
    assert with_enough_epochs(SMALL, 3) is SMALL
    enough = SMALL.updated(steps=2)
    assert with_enough_epochs(enough, 8) is enough
    earlier = [name for name in shipped_recipes() if name.startswith(("glyphs", "paper", "ms1m"))]
    assert len(earlier) == 7
    assert all(load_recipe(name).steps is None for name in earlier)


def test_the_900_photographs_that_got_84_steps():
    recipe = load_recipe("glyphs", ["steps=1500"])
    longer = with_enough_epochs(recipe, 900)
    assert steps_per_epoch(900, 64) * recipe.epochs == 84
    # 14 steps per epoch: 107 epochs have 1,498 steps and 108 have 1,512.
    assert (longer.epochs, longer.warmup_epochs, longer.refresh_epochs) == (108, 36, (72,))
    assert longer.lr_warmup_epochs == pytest.approx(18)
    note = length_note(recipe, longer, 900)
    assert note is not None
    assert "108 epochs instead of 6: 900 images are 14 steps per epoch" in note
    assert "at least 1,500 steps" in note
    assert length_note(longer, longer, 900) is None


def test_epochs_that_the_user_gives_are_not_stretched():
    recipe = load_recipe("photographs")
    assert with_enough_epochs(recipe, 159).epochs == 300  # 2 steps an epoch, 600 in all
    assert with_enough_epochs(load_recipe("photographs", ["epochs=3"]), 159).epochs == 3
    both = load_recipe("photographs", ["epochs=3", "steps=10"])
    assert with_enough_epochs(both, 159).epochs == 5
