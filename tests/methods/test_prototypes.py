import pytest
import torch

from tests.methods.cases import SETTINGS, knowledge, refreshed_loss, small_arcface
from unibct.methods.table import find_method
from unibct.prototypes.class_prototypes import class_prototypes
from unibct.prototypes.spread import moved_apart


@pytest.mark.parametrize(
    ("name", "kind"),
    [("unibct-centroid", "centroid"), ("unibct-drop", "drop"), ("unibct", "structural")],
)
def test_each_kind_is_arcface_on_its_prototypes(name, kind):
    old = knowledge()
    new = torch.randn(24, 8, generator=torch.Generator().manual_seed(2))
    loss, step = refreshed_loss(name, new)
    options = {"tau": 0.05, "lam": 0.9, "drop": 0.2}
    prototypes = class_prototypes(old.embeddings, old.labels, new=new, kind=kind, **options)
    assert torch.equal(loss, small_arcface(step.embeddings, prototypes, step.labels))


def test_ndpp_is_arcface_on_centroids_moved_apart():
    old = knowledge()
    loss, step = refreshed_loss("ndpp")
    centroids = class_prototypes(old.embeddings, old.labels, kind="centroid")
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
