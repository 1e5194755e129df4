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


@pytest.mark.parametrize(
    ("name", "kind"),
    [("unibct-centroid", "centroid"), ("unibct-drop", "drop"), ("unibct", "structural")],
)
def test_each_kind_is_arcface_on_its_prototypes(name, kind):
    old = knowledge()
    new = torch.randn(24, 8, generator=torch.Generator().manual_seed(2))
    loss, step = refreshed_loss(name, new)
    options = {"tau": 0.05, "lam": 0.9, "drop": 0.2}
    prototypes = class_prototypes(old.labels, old=old.embeddings, new=new, kind=kind, **options)
    assert torch.equal(loss, small_arcface(step.embeddings, prototypes, step.labels))


def test_ndpp_is_arcface_on_centroids_moved_apart():
    old = knowledge()
    loss, step = refreshed_loss("ndpp")
    centroids = class_prototypes(old.labels, old=old.embeddings, kind="centroid")
    moved = moved_apart(centroids)
    assert torch.equal(loss, small_arcface(step.embeddings, moved, step.labels))
    assert not torch.allclose(loss, small_arcface(step.embeddings, centroids, step.labels))


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


def test_regress_is_its_formula():
    loss, step = refreshed_loss("regress")
    assert torch.equal(loss, regress(new=step.embeddings, old=knowledge().embeddings[step.rows]))


def test_contrast_is_its_formula():
    loss, step = refreshed_loss("contrast")
    old_rows = knowledge().embeddings[step.rows]
    assert torch.equal(loss, contrast(step.labels, new=step.embeddings, old=old_rows))


def test_bct_is_arcface_on_the_old_class_weights_of_the_same_names():
    loss, step = refreshed_loss("bct")
    vectors = knowledge().old_class_weights[[4, 3, 1, 0]]
    assert torch.equal(loss, small_arcface(step.embeddings, vectors, step.labels))


def test_bct_refuses_new_classes_and_a_missing_classifier():
    with pytest.raises(UserError, match="does not know 1 of the 4 new classes, first 'a'"):
        find_method("bct").make(knowledge(old_class_names=("d", "c", "x", "b", "y")), SETTINGS)
    with pytest.raises(UserError, match="needs the old classifier"):
        find_method("bct").make(knowledge(old_class_weights=None), SETTINGS)
