import pytest
import torch

from tests.methods.cases import SETTINGS, knowledge, refreshed_loss, small_arcface
from unibct.errors import UserError
from unibct.methods.table import find_method


def test_bct_is_arcface_on_the_old_class_weights_of_the_same_names():
    loss, step = refreshed_loss("bct")
    vectors = knowledge().old_class_weights[[4, 3, 1, 0]]
    assert torch.equal(loss, small_arcface(step.embeddings, vectors, step.labels))


def test_bct_refuses_new_classes_and_a_missing_classifier():
    with pytest.raises(UserError, match="does not know 1 of the 4 new classes, first 'a'"):
        find_method("bct").make(knowledge(old_class_names=("d", "c", "x", "b", "y")), SETTINGS)
    with pytest.raises(UserError, match="needs the old classifier"):
        find_method("bct").make(knowledge(old_class_weights=None), SETTINGS)
