import copy
import json
from dataclasses import replace

import pytest

from tests.conftest import TINY
from tests.training.recipes import SMALL
from unibct.advice import advise as advise_module
from unibct.advice.advise import advise
from unibct.advice.request import AdviceRequest
from unibct.embeddings.extraction import embed_images
from unibct.embeddings.forms.table import write_embeddings
from unibct.embeddings.strength import Strength
from unibct.errors import UserError
from unibct.models.old_space import add_projection
from unibct.training.plan import plan_run


def request_of(upgrade, **changes):
    sets = {"images": upgrade.new_list, "old_images": upgrade.old_list, "gallery": "5000"}
    options = {"settings": (*TINY, "size=32"), "device": "cpu"}
    chosen = {"old": upgrade.model, **sets, **options, **changes}
    return AdviceRequest(data=upgrade.data, **chosen)


@pytest.mark.slow
def test_everything_is_named_measured_and_written_as_plain_values(upgrade):
    advice = advise(request_of(upgrade))
    assert advice.scenario.names == ("open-class",)
    assert (advice.scenario.old_classes, advice.scenario.shared_classes) == (4, 2)
    assert [method.name for method in advice.methods if not method.applies] == ["bct"]
    assert advice.strength is not None
    assert "classes, some of which it was trained on" in advice.strength_on
    assert min(advice.rates.as_json().values()) > 0
    assert set(advice.costs) == set(advice.commands) == {"training", "mapping", "backfill"}
    assert "5,000 gallery images" in advice.costs["backfill"].what
    assert "recipe glyphs (resnet-small on 32×32 grey)" in advice.recipe
    assert f"--images {upgrade.new_list}" in advice.commands["training"][0]
    values = json.loads(json.dumps(advice.as_json()))
    assert values["scenario"]["scenarios"] == ["open-class"]
    assert values["costs"]["training"]["estimated_seconds"] > 0
    assert values["old_model"]["recall_at_1"] == advice.strength.recall_at_1


@pytest.mark.slow
def test_stored_vectors_of_some_images_and_another_dimension(upgrade, tmp_path):
    """The old model is a file, which lacks some images; the new model has more dimensions."""
    lacking = upgrade.new_images.select(range(10, len(upgrade.new_images)))
    embeddings = embed_images(upgrade.old_model, lacking)
    write_embeddings(embeddings, tmp_path / "old.npy", "npy")
    old = f"embeddings:{tmp_path / 'old.npy'}"
    settings = (*TINY, "dim=160")
    advice = advise(request_of(upgrade, settings=settings, old=old, old_images=None))
    assert advice.scenario.names == ()
    assert advice.strength is not None
    assert advice.rates.old_forward is None
    assert "old embeddings" not in {*advice.costs["training"].parts, *advice.costs["mapping"].parts}
    obstacles = {method.name: method.obstacle for method in advice.methods if not method.applies}
    assert list(obstacles) == ["bct", "mixbct"]
    assert obstacles["mixbct"] == "it mixes new and old embeddings, of 160 and 128 dimensions"
    notes = "\n".join(advice.notes)
    first = upgrade.new_images.ids[0]
    assert f"has no embedding of 10 of {len(upgrade.new_images)} images, first {first!r}" in notes
    assert "embed and export 'models/new?space=old'" in notes
    assert f"--old {old}" in advice.commands["mapping"][1]
    assert json.loads(json.dumps(advice.as_json()))["images_per_second"]["old_forward"] is None


@pytest.mark.slow
def test_a_projection_of_the_old_model_is_mentioned(upgrade):
    """The old model was itself trained with another dimension than the one before it."""
    network = copy.deepcopy(upgrade.old_model.network)
    add_projection(network, upgrade.old_model.dim, 64)
    old = replace(upgrade.old_model, network=network)
    run = plan_run(upgrade.new_images, SMALL, old=old)
    notes = advise_module._old_model_notes(old, upgrade.new_images, 1, run)  # pyright: ignore
    assert len(notes) == 1
    assert "a projection into the 64 dimensions of its own old model" in notes[0]


def test_what_cannot_work_is_refused_before_anything_is_measured(upgrade, monkeypatch):
    monkeypatch.setattr(advise_module, "read_sample", pytest.fail)
    with pytest.raises(UserError, match="does not know 8 of the 10 new classes"):
        advise(request_of(upgrade, method="bct"))
    with pytest.raises(UserError, match="unknown method 'x'"):
        advise(request_of(upgrade, method="x"))
    with pytest.raises(UserError, match="unknown setting 'epoch'"):
        advise(request_of(upgrade, settings=("epoch=3",)))


def test_the_notes_say_what_the_numbers_mean():
    class FixedCost:
        def __init__(self, seconds):
            self.seconds = seconds

    def notes(strength, backfill, known=True):
        costs = {"training": FixedCost(100.0), "backfill": FixedCost(backfill)}
        return "\n".join(advise_module._notes(strength, costs, gallery_known=known))  # pyright: ignore

    assert "hardly better than raw pixels" in notes(Strength(0.2, 0.2), 200.0)
    strong = notes(Strength(0.9, 0.2), 200.0)
    assert "raw pixels" not in strong
    assert "takes less time than the training" not in strong
    assert "takes less time than the training" in notes(None, 50.0)
    assert "say how many with --gallery" in notes(None, 50.0, known=False)


def test_the_same_images_ask_for_a_larger_network_unless_one_is_named(upgrade):
    images = upgrade.new_images
    for settings, want_larger, expected, taken in [
        ((), True, "resnet-small-wide", "resnet-small-wide"),
        ((), False, "resnet-small", None),
        (("architecture=resnet-small",), True, "resnet-small", None),
    ]:
        request = request_of(upgrade, settings=settings, recipe="glyphs")
        recipe, line, options, larger = advise_module._recipe(
            request, images, want_larger=want_larger
        )
        assert (recipe.architecture, larger) == (expected, taken)
        assert ("because the images are the same" in line) == (taken is not None)
        assert options == ["--recipe", "glyphs"]


def test_stored_vectors_of_one_class_are_too_few(upgrade, tmp_path):
    images = upgrade.new_images
    first = images.select([row for row in range(len(images)) if images.labels[row] == 0])
    write_embeddings(embed_images(upgrade.old_model, first), tmp_path / "one.npy", "npy")
    with pytest.raises(UserError, match="has embeddings of 1 class of"):
        advise(request_of(upgrade, old=f"embeddings:{tmp_path / 'one.npy'}"))
