from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.models.cases import small_model, trained_from
from unibct.data.training_classes import BEST_EPOCH, SCORE_SCALE_MEASURED, Choice
from unibct.errors import UserError
from unibct.models.blended_weights import blend_weights
from unibct.models.input import InputSpec

OLD_SCALE, NEW_SCALE = (Choice(SCORE_SCALE_MEASURED, data) for data in ("old", "new"))
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 1), dtype=np.uint8)


def test_every_weight_is_between_the_two():
    old = small_model()
    new = trained_from(old)
    blended = blend_weights(old, new, 0.3)
    before, after = old.network.state_dict(), new.network.state_dict()
    for name, weight in blended.network.state_dict().items():
        if weight.is_floating_point():
            assert torch.allclose(weight, 0.7 * before[name] + 0.3 * after[name], atol=1e-6)
        else:
            assert torch.equal(weight, after[name])
    assert blended.fingerprint not in (old.fingerprint, new.fingerprint)
    assert blended.old_fingerprint == old.fingerprint
    record = {"alpha": 0.3, "old": old.fingerprint, "new": new.fingerprint}
    assert blended.training["blended_weights"] == record
    assert (new.score_scale, blended.score_scale) == (1.2, None)


def test_the_ends_are_the_models_themselves():
    old = small_model()
    new = trained_from(old)
    assert blend_weights(old, new, 0).fingerprint == old.fingerprint
    end = blend_weights(old, new, 1)
    assert end.fingerprint == new.fingerprint
    assert end.training == new.training
    assert end.network is not new.network


def test_what_was_chosen_for_either_model_was_chosen_for_the_blend():
    """But a blend has no score scale, and the old one's is never the new model's."""
    ours, theirs = Choice(BEST_EPOCH, "ours"), Choice(BEST_EPOCH, "theirs")
    old = small_model().with_choice(theirs).with_score_scale(2.0, choice=OLD_SCALE)
    new = trained_from(small_model()).with_choice(ours).with_score_scale(1.2, choice=NEW_SCALE)
    assert old.further_classes.choices == {theirs, OLD_SCALE}
    assert blend_weights(old, new, 0.5).further_classes.choices == {ours, theirs}
    assert blend_weights(old, new, 1).further_classes.choices == {ours, theirs, NEW_SCALE}


def test_the_beginning_of_a_grown_network_embeds_as_the_old_one():
    old = small_model()
    new = trained_from(old, "resnet-small-wide")
    begin = blend_weights(old, new, 0)
    assert begin.architecture == "resnet-small-wide"
    expected, middle = old.embed_pixels(PIXELS), blend_weights(old, new, 0.5)
    np.testing.assert_allclose(begin.embed_pixels(PIXELS), expected, atol=1e-5)
    assert not np.allclose(middle.embed_pixels(PIXELS), expected, atol=1e-2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"old_fingerprint": "f" * 32}, "but with ffff"),
        ({"old_fingerprint": None}, "but without one"),
        ({"training": {"recipe": {"warm_start": False, "seed": 0}}}, "not trained from the old"),
        ({"training": {}}, "not trained from the old weights"),
        ({"vector_map": object()}, "not trained from the old weights"),
    ],
)
def test_models_without_a_way_between_them_are_refused(changes, message):
    old = small_model()
    with pytest.raises(UserError, match=message):
        blend_weights(old, replace(trained_from(old), **changes), 0.5)


def test_models_that_cannot_be_blended_are_named():
    old = small_model()
    new = trained_from(old)
    greyer = replace(new, input=InputSpec(32, 32, 1, mean=0.1))
    for models, alpha, message in [
        ((new, old), 0.5, "the other way round: the old one comes first"),
        ((old, greyer), 0.5, "take other images"),
        ((old, new), -0.1, r"alpha lies in \[0, 1\]"),
        ((old, new), 1.1, r"alpha lies in \[0, 1\]"),
        ((old, new), float("nan"), r"alpha lies in \[0, 1\]"),
        ((old, blend_weights(old, new, 0.5)), 0.5, "blended weights already"),
    ]:
        with pytest.raises(UserError, match=message):
            blend_weights(*models, alpha)
