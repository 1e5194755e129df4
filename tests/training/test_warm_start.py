"""Which runs start from the old model's weights."""

from dataclasses import replace

import pytest
import torch

from tests.notes import Notes
from unibct.arrays import normalized
from unibct.embeddings.extraction import embed_images
from unibct.errors import UserError
from unibct.methods.prototypes import Prototypes
from unibct.methods.table import find_method
from unibct.models.architectures.table import find_architecture
from unibct.models.folder import save_model
from unibct.models.model import Model
from unibct.training.recipe import Recipe
from unibct.training.train import train
from unibct.training.warm_start import starts_from_old

PLUS, PAPER = find_method("unibct-plus"), find_method("unibct")
SMALL = Recipe(architecture="resnet-small")
SMALL_ENTRY = find_architecture("resnet-small")


def old_model(architecture="resnet-small", dim=128):
    entry = find_architecture(architecture)
    return Model(entry.build(entry.input, dim), architecture, entry.input, dim)


def decided(recipe=SMALL, method=PLUS, old=None, dim=128, **changes):
    architecture = replace(find_architecture(recipe.architecture), **changes)
    return starts_from_old(recipe, method, architecture, dim, old)


def test_unibct_plus_starts_from_the_old_weights_where_it_can():
    assert decided(old=old_model()) is True
    assert decided(SMALL.updated(warm_start=False), old=old_model()) is False
    wide = SMALL.updated(architecture="resnet-small-wide")
    assert decided(wide, old=old_model()) is True
    assert decided(wide.updated(warm_start=True), PAPER, old_model()) is True
    assert decided(wide.updated(warm_start=False), old=old_model()) is False


@pytest.mark.parametrize(
    ("recipe", "dim", "old", "changes"),
    [
        pytest.param(SMALL, 128, None, {}, id="no old model"),
        pytest.param(SMALL, 128, old_model("resnet-small-wide"), {}, id="another network"),
        pytest.param(SMALL, 64, old_model(), {}, id="another dimension"),
        pytest.param(SMALL.updated(size=48), 128, old_model(), {}, id="another size"),
        pytest.param(SMALL.updated(mean=0.4), 128, old_model(), {}, id="another brightness"),
        pytest.param(SMALL, 128, old_model(), {"start": print}, id="other first weights"),
    ],
)
def test_unibct_plus_starts_from_random_weights_otherwise(recipe, dim, old, changes):
    assert decided(recipe, PLUS, old, dim, **changes) is False


def test_other_methods_start_so_only_if_the_recipe_says_so():
    assert decided(method=PAPER, old=old_model()) is None
    assert decided(SMALL.updated(warm_start=True), PAPER, old_model()) is True
    assert decided(method=find_method("plus-cold"), old=old_model()) is None
    assert decided(method=find_method("plus-no-loss"), old=old_model())


def test_a_recipe_that_asks_for_it_gets_it_or_an_error():
    asked = SMALL.updated(warm_start=True)
    for old, dim, message in [
        (None, 128, "give --old MODEL"),
        (old_model("resnet-small-wide"), 128, "needs the same architecture"),
        (old_model(), 64, "needs the same dimension"),
    ]:
        with pytest.raises(UserError, match=message):
            decided(asked, PAPER, old, dim)


def test_a_model_records_from_where_it_started(four_classes, four_classes_old, tmp_path):
    recipe = SMALL.updated(size=16, epochs=1, lr=1e-9, batch_size=8, warmup_epochs=0)
    model = train(four_classes, recipe, tmp_path / "new", old=four_classes_old, device="cpu")
    assert model.training["recipe"]["warm_start"] is True
    pairs = zip(model.network.parameters(), four_classes_old.network.parameters(), strict=True)
    assert all(torch.allclose(new, old, atol=1e-6) for new, old in pairs)


def test_a_larger_network_grows_from_the_old_one(four_classes, four_classes_old, tmp_path):
    recipe = SMALL.updated(size=16, epochs=1, lr=1e-9, batch_size=8, warmup_epochs=0)
    wide = recipe.updated(architecture="resnet-small-wide")
    model = train(four_classes, wide, tmp_path / "new", old=four_classes_old, device="cpu")
    assert model.training["recipe"]["warm_start"] is True
    assert model.architecture == "resnet-small-wide"
    # The running means have seen a few batches; everything else is as it was.
    new, old = (embed_images(m, four_classes).vectors for m in (model, four_classes_old))
    cosines = (normalized(new) * normalized(old)).sum(axis=1)
    assert cosines.min() > 0.9


def test_a_weight_average_begins_with_the_old_weights(four_classes, four_classes_old, tmp_path):
    recipe = SMALL.updated(size=16, epochs=1, lr=1e-9, batch_size=8, warmup_epochs=0)
    averaged = recipe.updated(average=0.999, warm_start=True)
    options = {"old": four_classes_old, "method": "unibct", "device": "cpu"}
    similarities = []

    def refreshed(self, new_embeddings):
        old = torch.from_numpy(embed_images(four_classes_old, four_classes).vectors)
        similarities.append(
            float((torch.nn.functional.normalize(new_embeddings) * old).sum(1).min())
        )
        return refresh(self, new_embeddings)

    refresh = Prototypes.refresh
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Prototypes, "refresh", refreshed)
        train(four_classes, averaged, tmp_path / "new", **options)
    assert len(similarities) == 1
    assert similarities[0] > 0.999


def test_another_release_of_a_library_builds_the_same_network():
    entry = replace(SMALL_ENTRY, config={"reference": "x", "library": "timm 1.1"})
    old = replace(old_model(), architecture_config={"reference": "x", "library": "timm 1.0"})
    assert starts_from_old(SMALL, PLUS, entry, 128, old) is True
    other = replace(old, architecture_config={"reference": "y", "library": "timm 1.1"})
    assert starts_from_old(SMALL, PLUS, entry, 128, other) is False


def test_old_weights_that_replace_chosen_ones_are_mentioned(
    four_classes, four_classes_old, tmp_path
):
    recipe = SMALL.updated(size=16, epochs=1, lr=1e-9, batch_size=8, warmup_epochs=0)
    weights, notes = str(tmp_path / "other"), Notes()
    save_model(four_classes_old, weights)
    asked = recipe.updated(warm_start=True, weights=weights)
    options = {"old": four_classes_old, "device": "cpu", "progress": notes}
    train(four_classes, asked, tmp_path / "new", **options)
    assert f"warm_start: from the old model's weights, not from {weights}" in notes.texts
