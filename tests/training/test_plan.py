from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.models.cases import small_model
from tests.notes import Notes, show
from tests.training.runs import RECIPE, SHORT, SMALL, small_context, train
from unibct.arrays import normalized
from unibct.distributed.ranks import Ranks
from unibct.embeddings.extraction import embed
from unibct.errors import UserError
from unibct.methods import find_method
from unibct.methods.paper import Prototypes
from unibct.models.architectures import find_architecture
from unibct.models.model import Model
from unibct.models.model_folder import save_model
from unibct.training import shipped_recipes
from unibct.training.plan import (
    images_per_epoch,
    length_note,
    plan_run,
    require_epochs_left,
    require_same_run,
    starts_from_old,
    steps_per_epoch,
    upgrade_recipes,
    with_enough_epochs,
)
from unibct.training.recipe import Recipe, load_recipe

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
    marks = tuple(sorted(marks))
    later = {"milestones": marks, "refresh_epochs": marks, "warmup_epochs": epochs - 1}
    given = {"epochs": epochs, "batch_size": batch_size, "steps": steps, "schedule": schedule}
    recipe = Recipe(**later, **given, lr_warmup_epochs=epochs / 4)
    longer = with_enough_epochs(recipe, images)
    in_an_epoch = len(counted_batches(images, batch_size))
    enough = epochs
    while enough * in_an_epoch < steps:
        enough += 1
    assert longer.epochs == enough
    factor = Fraction(enough, epochs)
    expected = tuple(nearest(mark * factor) for mark in marks)
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


# Which runs start from the old model's weights.

PLUS, PAPER = find_method("unibct-plus"), find_method("unibct")
RESNET = Recipe(architecture="resnet-small")
STILL = RESNET.updated(size=16, epochs=1, lr=1e-9, batch_size=8, warmup_epochs=0)
SMALL_ENTRY = find_architecture("resnet-small")


def old_model(architecture="resnet-small", dim=128):
    entry = find_architecture(architecture)
    return Model(entry.build(entry.input, dim), architecture, entry.input, dim)


def decided(recipe=RESNET, method=PLUS, old=None, dim=128, **changes):
    architecture = replace(find_architecture(recipe.architecture), **changes)
    return starts_from_old(recipe, method, architecture, dim, old)


def test_unibct_plus_starts_from_the_old_weights_where_it_can():
    assert decided(old=old_model()) is True
    assert decided(RESNET.updated(warm_start=False), old=old_model()) is False
    wide = RESNET.updated(architecture="resnet-small-wide")
    assert decided(wide, old=old_model()) is True
    assert decided(wide.updated(warm_start=True), PAPER, old_model()) is True
    assert decided(wide.updated(warm_start=False), old=old_model()) is False


@pytest.mark.parametrize(
    ("recipe", "dim", "old", "changes"),
    [
        pytest.param(RESNET, 128, None, {}, id="no old model"),
        pytest.param(RESNET, 128, old_model("resnet-small-wide"), {}, id="another network"),
        pytest.param(RESNET, 64, old_model(), {}, id="another dimension"),
        pytest.param(RESNET.updated(size=48), 128, old_model(), {}, id="another size"),
        pytest.param(RESNET.updated(mean=0.4), 128, old_model(), {}, id="another brightness"),
        pytest.param(RESNET, 128, old_model(), {"start": print}, id="other first weights"),
    ],
)
def test_unibct_plus_starts_from_random_weights_otherwise(recipe, dim, old, changes):
    assert decided(recipe, PLUS, old, dim, **changes) is False


def test_other_methods_start_so_only_if_the_recipe_says_so():
    assert decided(method=PAPER, old=old_model()) is None
    assert decided(RESNET.updated(warm_start=True), PAPER, old_model()) is True
    assert decided(method=find_method("none"), old=old_model()) is None


def test_a_recipe_that_asks_for_it_gets_it_or_an_error():
    asked = RESNET.updated(warm_start=True)
    for old, dim, message in [
        (None, 128, "give old"),
        (old_model("resnet-small-wide"), 128, "needs the same architecture"),
        (old_model(), 64, "needs the same dimension"),
    ]:
        with pytest.raises(UserError, match=message):
            decided(asked, PAPER, old, dim)


def test_a_model_records_from_where_it_started(four_classes, four_classes_old, tmp_path):
    model = train(four_classes, STILL, tmp_path / "new", old=four_classes_old)
    assert model.training["recipe"]["warm_start"] is True
    pairs = zip(model.network.parameters(), four_classes_old.network.parameters(), strict=True)
    assert all(torch.allclose(new, old, atol=1e-6) for new, old in pairs)


def test_a_larger_network_grows_from_the_old_one(four_classes, four_classes_old, tmp_path):
    wide = STILL.updated(architecture="resnet-small-wide")
    model = train(four_classes, wide, tmp_path / "new", old=four_classes_old)
    assert model.training["recipe"]["warm_start"] is True
    assert model.architecture == "resnet-small-wide"
    # The running means have seen a few batches; everything else is as it was.
    new, old = (embed(m, four_classes).vectors for m in (model, four_classes_old))
    cosines = (normalized(new) * normalized(old)).sum(axis=1)
    assert cosines.min() > 0.9


def test_a_weight_average_begins_with_the_old_weights(four_classes, four_classes_old, tmp_path):
    averaged = STILL.updated(warm_start=True)
    options = {"old": four_classes_old, "method": "unibct"}
    similarities, refresh = [], Prototypes.refresh

    def refreshed(self, new_embeddings):
        old = torch.from_numpy(embed(four_classes_old, four_classes).vectors)
        cosines = (torch.nn.functional.normalize(new_embeddings) * old).sum(1)
        similarities.append(float(cosines.min()))
        return refresh(self, new_embeddings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Prototypes, "refresh", refreshed)
        train(four_classes, averaged, tmp_path / "new", **options)
    assert len(similarities) == 1
    assert similarities[0] > 0.999


def test_another_release_of_a_library_builds_the_same_network():
    entry = replace(SMALL_ENTRY, config={"reference": "x", "library": "timm 1.1"})
    old = replace(old_model(), architecture_config={"reference": "x", "library": "timm 1.0"})
    assert starts_from_old(RESNET, PLUS, entry, 128, old) is True
    other = replace(old, architecture_config={"reference": "y", "library": "timm 1.1"})
    assert starts_from_old(RESNET, PLUS, entry, 128, other) is False


def test_old_weights_that_replace_chosen_ones_are_mentioned(
    four_classes, four_classes_old, tmp_path
):
    weights, notes = str(tmp_path / "other"), show(Notes())
    save_model(four_classes_old, weights)
    asked = SHORT.updated(size=16, lr=1e-9, warm_start=True, weights=weights)
    train(four_classes, asked, tmp_path / "new", old=four_classes_old)
    assert f"warm_start: from the old model's weights, not from {weights}" in notes.texts


def test_a_free_model_may_have_its_own_dimension(split_images, old_model):
    run = plan_run(split_images[1], RECIPE.updated(dim=64), old=old_model, method="none")
    assert run.recipe.dim == 64
    assert run.old_fingerprint is None


def test_when_a_method_is_at_work_and_refreshed(four_classes, four_classes_old):
    recipe = SMALL.updated(epochs=9, warmup_epochs=3, refresh_epochs=(1, 3, 6))
    for method, start, refreshes in [("unibct", 3, [3, 6]), ("unibct-plus", 0, [0, 1, 3, 6])]:
        run = plan_run(four_classes, recipe, old=four_classes_old, method=method)
        assert run.method_start == start
        assert [epoch for epoch in range(9) if run.refreshes_at(epoch)] == refreshes


@pytest.mark.parametrize(
    ("method", "start", "warm_start", "eta"),
    [
        ("unibct", 3, None, 1.0),
        ("unibct@warmup_epochs=0", 0, None, 1.0),
        ("mixbct@warmup_epochs=2", 2, None, 1.0),
        ("unibct-plus@weight=0.5", 0, True, 1.0),
        ("unibct-plus@warm_start=false,eta=0.5", 0, False, 0.5),
        ("none@warm_start=true", 3, True, 1.0),
    ],
)
def test_the_name_of_a_variant_changes_the_recipe(
    method, start, warm_start, eta, four_classes, four_classes_old
):
    recipe = SMALL.updated(epochs=9, warmup_epochs=3)
    run = plan_run(four_classes, recipe, old=four_classes_old, method=method)
    assert (run.method_start, run.recipe.warm_start, run.recipe.eta) == (start, warm_start, eta)
    with pytest.raises(UserError, match="warmup_epochs = 9 leaves none of 9 epochs"):
        require_epochs_left("lce@warmup_epochs=9", recipe)
    with pytest.raises(UserError, match="warmup_epochs"):
        plan_run(four_classes, recipe, old=four_classes_old, method="unibct@warmup_epochs=soon")


def test_a_warm_up_is_shared_by_runs_that_differ_later_only(four_classes, four_classes_old):
    def digest(pixels="p", method="unibct", **changes):
        return plan_run(
            four_classes, SMALL.updated(seed=3, **changes), old=four_classes_old, method=method
        ).warmup_digest(pixels)

    later = {"eta": 5.0, "tau": 0.5, "lam": 0.1, "drop": 0.3, "refresh_epochs": (2,)}
    assert digest() == digest(method="none") == digest(method="advbct@warmup_epochs=1", **later)
    assert digest(warm_start=False) == digest()
    earlier = {"pixels": "q", "lr": 0.2, "epochs": 4, "momentum": 0.5, "margin": 0.1}
    earlier["architecture"] = "resnet-small-wide"
    assert len({digest(), *(digest(**{k: value}) for k, value in earlier.items())}) == 7
    for none in ({"method": "unibct-plus"}, {"warmup_epochs": 0}, {"warm_start": True}):
        assert digest(**none) is None


def test_the_two_recipes_of_an_upgrade():
    for scenario in ("extended-data", "open-class"):
        for seed in (0, 3):
            old, new = upgrade_recipes(RECIPE, scenario, seed)
            assert (old, new) == (RECIPE.updated(seed=2 * seed), RECIPE.updated(seed=2 * seed + 1))
    old, new = upgrade_recipes(RECIPE.updated(architecture="resnet18"), "identical-data", 1)
    assert (old.architecture, old.dim, old.seed) == ("resnet18", None, 2)
    assert (new.architecture, new.dim, new.seed) == ("resnet50", 512, 3)
    with pytest.raises(UserError, match="identical-data needs a larger network than resnet50"):
        upgrade_recipes(RECIPE.updated(architecture="resnet50"), "identical-data", 0)


def test_another_run_is_named_by_the_first_value_that_differs(tmp_path):
    planned = {"method": "unibct", "pixels": "p", "recipe": {"lr": 0.1, "epochs": 3}}
    require_same_run(planned | {"torch": "any"}, planned, tmp_path)
    require_same_run(planned | {"unibct": "0.0.9"}, planned | {"unibct": "0.1.0"}, tmp_path)
    later = planned | {"recipe": planned["recipe"] | {"future_loss": 1.0}}
    with pytest.raises(UserError, match=r"another version of unibct: .* its recipe\.future_loss"):
        require_same_run(later, planned, tmp_path)
    given_up = {"accumulate": 1, "average": 0.0, "dropout": 0.0, "low_resolution": 0.0}
    require_same_run(planned | {"recipe": planned["recipe"] | given_up}, planned, tmp_path)
    for key in given_up:
        used = planned | {"recipe": planned["recipe"] | given_up | {key: 0.5}}
        with pytest.raises(UserError, match=rf"another version of unibct: .* its recipe\.{key}"):
            require_same_run(used, planned, tmp_path)
    for stored, message in [
        (planned | {"method": "bct"}, "its method is 'bct', not 'unibct'"),
        (planned | {"recipe": {"lr": 0.2, "epochs": 4}}, r"its recipe\.lr is 0\.2, not 0\.1"),
        ({"method": "unibct", "pixels": "p"}, r"its recipe\.epochs is 35"),  # the default
    ]:
        with pytest.raises(UserError, match=f"holds another run: {message}"):
            require_same_run(stored, planned, tmp_path)


def test_class_rows_are_not_taken_by_number(four_classes):
    """Both sets call their classes 0, 1, …, and nothing says that these are the same."""
    names = tuple("0123")
    images = replace(four_classes, class_names=names)
    assert images.class_source is not None
    recipe = SMALL.updated(warmup_epochs=0, dim=16)
    refused = r"bct cannot be used.*only number.*names that are not mere numbers"
    for source in ("set-0123456789ab", "unknown"):
        old = small_model(class_names=names, class_source=source)
        with pytest.raises(UserError, match=refused):
            plan_run(images, recipe, old=old, method="bct")
    same = small_model(class_names=names, class_source=images.class_source)
    assert plan_run(images.select(range(12)), recipe, old=same, method="bct").method == "bct"


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


def test_a_run_on_fewer_images_is_as_long_in_steps(four_classes):
    """Some images turn out to be unreadable after the plan was made."""
    run = plan_run(four_classes, SMALL.updated(steps=12))
    fewer = run.of(four_classes.select(range(16)))
    assert (run.recipe.epochs, fewer.recipe.epochs) == (4, 6)
    assert len(fewer.images) == fewer.description()["images"] == 16
    assert (fewer.dim, fewer.seed, fewer.given) == (run.dim, run.seed, run.given)
    with pytest.raises(UserError, match="has one class only"):
        run.of(four_classes.select(range(6)))
