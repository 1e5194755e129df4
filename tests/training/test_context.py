import pytest
import torch

from tests.training.recipes import RECIPE
from tests.training.run_contexts import small_context
from unibct.distributed.ranks import Ranks


@pytest.mark.parametrize(
    ("batch_size", "images", "steps"), [(5, 20, 4), (8, 24, 3), (24, 24, 1), (30, 24, 1)]
)
def test_an_epoch_has_whole_batches_or_one_small_one(batch_size, images, steps, four_classes):
    context = small_context(four_classes, RECIPE.updated(batch_size=batch_size))
    assert (context.images_per_epoch, context.steps_per_epoch) == (images, steps)


def test_classes_are_spread_over_the_ranks(four_classes):
    parts = [small_context(four_classes, RECIPE, ranks=Ranks(r, 3)).own_classes for r in range(3)]
    assert [c for part in parts for c in part] == [0, 1, 2, 3]


def test_a_description_names_the_pixels(four_classes):
    context = small_context(four_classes, RECIPE)
    assert context.description["pixels"] == context.pixels.digest
    assert torch.equal(context.labels, torch.from_numpy(four_classes.labels))
