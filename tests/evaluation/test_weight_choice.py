from dataclasses import replace

import numpy as np
import pytest

from tests.models.cases import small_model, trained_from
from tests.notes import Notes
from unibct import progress
from unibct.data.training_classes import UNKNOWN_CLASSES
from unibct.embeddings.extraction import embed
from unibct.embeddings.score_scale import score_scale
from unibct.errors import UserError
from unibct.evaluation.search_test import search_test
from unibct.evaluation.templates import split_gallery
from unibct.evaluation.weight_choice import choose_weights
from unibct.models.blended_weights import blend_weights


@pytest.fixture(scope="module")
def models():
    old = replace(small_model(), class_names=("somebody else",))
    return old, trained_from(old)


def test_the_share_with_the_best_cross_test_is_chosen(glyph_classes, models):
    old, new = models
    shares = (0.2, 0.6, 1.0)
    choice = choose_weights(glyph_classes, old=old, new=new, alphas=shares)
    split = split_gallery(glyph_classes.labels)
    old_rows = embed(old, glyph_classes).vectors
    assert choice.old_self == search_test(old_rows, old_rows, split).top(1)
    ranks = {}
    for alpha, tried in zip(shares, choice.tried, strict=True):
        rows = embed(blend_weights(old, new, alpha), glyph_classes).vectors
        cross = search_test(rows, old_rows, split)
        ranks[alpha] = np.mean([1 / (1 + rank) for rank in cross.ranks])
        assert tried.alpha == alpha
        assert tried.mean_reciprocal_rank == pytest.approx(ranks[alpha], abs=1e-6)
        assert tried.cross == cross.top(1)
        assert tried.new_self == search_test(rows, rows, split).top(1)
    assert choice.alpha == max(ranks, key=lambda alpha: ranks[alpha])
    best = blend_weights(old, new, choice.alpha)
    assert choice.model.fingerprint == best.fingerprint
    chosen_rows = embed(best, glyph_classes).vectors
    scale = score_scale(chosen_rows, old_rows, glyph_classes.labels)
    assert choice.model.score_scale == pytest.approx(scale)
    assert choice.as_json()["tried"][0]["alpha"] == 0.2


def test_of_equals_the_larger_share_is_chosen(glyph_classes, models):
    old, _ = models
    same = replace(trained_from(old), network=old.network)
    assert choose_weights(glyph_classes, old=old, new=same, alphas=(0.1, 0.9, 0.5)).alpha == 0.9


def test_training_classes_and_an_empty_choice_are_refused(glyph_classes, models):
    old, _ = models
    knows = replace(old, class_names=glyph_classes.class_names)
    with pytest.raises(UserError, match="were in a model's training set"):
        choose_weights(glyph_classes, old=knows, new=trained_from(knows))
    notes = Notes()
    knows_two = replace(old, class_names=glyph_classes.class_names[:2])
    new = trained_from(knows_two)
    with progress.shown(notes):
        choose_weights(glyph_classes, old=knows_two, new=new, alphas=(1.0,))
    assert f"2 of the {len(glyph_classes.class_names)} classes of" in notes.texts[0]
    unknown = replace(old, further_classes=UNKNOWN_CLASSES)
    with progress.shown(notes):
        choose_weights(glyph_classes, old=unknown, new=trained_from(unknown), alphas=(1.0,))
    assert "than are counted is unknown: what the first weights" in notes.texts[-1]
    with pytest.raises(UserError, match="alphas is empty"):
        choose_weights(glyph_classes, old=old, new=trained_from(old), alphas=())
