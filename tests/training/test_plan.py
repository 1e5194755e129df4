from dataclasses import replace

import pytest

from tests.models.cases import small_model
from tests.training.recipes import RECIPE, SMALL
from unibct.errors import UserError
from unibct.training.plan import plan_run, require_same_run, upgrade_recipes


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


def test_a_warm_up_is_shared_by_runs_that_differ_later_only(four_classes, four_classes_old):
    def digest(pixels="p", method="unibct", **changes):
        return plan_run(
            four_classes, SMALL.updated(seed=3, **changes), old=four_classes_old, method=method
        ).warmup_digest(pixels)

    later = {"eta": 5.0, "tau": 0.5, "lam": 0.1, "drop": 0.3, "refresh_epochs": (2,)}
    assert digest() == digest(method="none") == digest(method="advbct-warmup", **later)
    assert digest(warm_start=False) == digest()
    others = [
        digest(**changes)
        for changes in (
            {"pixels": "q"},
            {"lr": 0.2},
            {"epochs": 4},
            {"momentum": 0.5},
            {"margin": 0.1},
            {"architecture": "resnet-small-wide"},
        )
    ]
    assert len({digest(), *others}) == 7
    assert digest(method="unibct-plus") is None
    assert digest(warmup_epochs=0) is None
    assert digest(warm_start=True) is None


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
