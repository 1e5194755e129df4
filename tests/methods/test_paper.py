from functools import partial

import pytest
import torch

from tests.methods.cases import SETTINGS, batch, knowledge, refreshed_loss, small_arcface
from unibct.errors import UserError
from unibct.losses import contrast, regress
from unibct.methods import find_method
from unibct.methods.paper import FrozenClassVectors
from unibct.prototypes.class_prototypes import class_prototypes
from unibct.prototypes.weights import moved_apart


def test_class_vectors_come_from_a_checkpoint_and_get_no_gradient():
    method, step = FrozenClassVectors(SETTINGS), batch()
    assert method.class_state() == {}
    with pytest.raises(UserError, match="call refresh with its embeddings"):
        method.loss(step)
    vectors = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))
    method.load_state({"class_vectors": vectors})
    loss = method.loss(step)
    assert torch.equal(loss, small_arcface(step.embeddings, vectors, step.labels))
    loss.backward()
    assert vectors.grad is None
    assert torch.equal(method.class_state()["class_vectors"], vectors)
    method.load_state({})
    assert torch.equal(method.class_state()["class_vectors"], vectors)


def prototypes_of(old, new, kind):
    options = {"tau": 0.05, "lam": 0.9, "drop": 0.2}
    return class_prototypes(old.labels, old=old.embeddings, new=new, kind=kind, **options)


# The class vectors of each method, from the old model's knowledge and the new embeddings.
CLASS_VECTORS = {
    "unibct-centroid": lambda old, new: prototypes_of(old, new, "centroid"),
    "unibct-drop": lambda old, new: prototypes_of(old, new, "drop"),
    "unibct": lambda old, new: prototypes_of(old, new, "structural"),
    "ndpp": lambda old, new: moved_apart(prototypes_of(old, new, "centroid")),
    "bct": lambda old, new: old.old_class_weights[[4, 3, 1, 0]],  # of the same names
}


def test_each_is_arcface_on_its_own_class_vectors():
    new = torch.randn(24, 8, generator=torch.Generator().manual_seed(2))
    losses = {}
    for name, class_vectors in CLASS_VECTORS.items():
        losses[name], step = refreshed_loss(name, new)
        vectors = class_vectors(knowledge(), new)
        assert torch.equal(losses[name], small_arcface(step.embeddings, vectors, step.labels)), name
    assert not torch.allclose(losses["ndpp"], losses["unibct-centroid"])


@pytest.mark.parametrize("name", ["unibct-centroid", "unibct-drop", "ndpp"])
def test_prototypes_without_new_embeddings_are_made_once(name):
    method = find_method(name).make(knowledge(), SETTINGS)
    method.refresh(None)
    first = method.class_state()["class_vectors"]
    method.refresh(None)
    assert method.class_state()["class_vectors"] is first


def test_structural_prototypes_follow_the_new_model_and_survive_a_checkpoint():
    old = knowledge()
    method = find_method("unibct").make(old, SETTINGS)
    method.refresh(torch.randn(24, 8, generator=torch.Generator().manual_seed(1)))
    first = {k: v.clone() for k, v in method.class_state().items()}
    method.refresh(torch.randn(24, 8, generator=torch.Generator().manual_seed(2)))
    assert not torch.equal(method.class_state()["class_vectors"], first["class_vectors"])
    other = find_method("unibct").make(old, SETTINGS)
    other.load_state(first)
    assert torch.equal(other.class_state()["class_vectors"], first["class_vectors"])


def test_regress_and_contrast_are_their_formulas():
    for name, formula in (("regress", regress), ("contrast", partial(contrast, batch().labels))):
        loss, step = refreshed_loss(name)
        old_rows = knowledge().embeddings[step.rows]
        assert torch.equal(loss, formula(new=step.embeddings, old=old_rows)), name


def test_bct_refuses_new_classes_and_a_missing_classifier():
    with pytest.raises(UserError, match="does not know 1 of the 4 new classes, first 'a'"):
        find_method("bct").make(knowledge(old_class_names=("d", "c", "x", "b", "y")), SETTINGS)
    with pytest.raises(UserError, match="needs the old classifier"):
        find_method("bct").make(knowledge(old_class_weights=None), SETTINGS)
