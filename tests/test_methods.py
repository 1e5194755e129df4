import pytest
import torch

from unibct import losses
from unibct.errors import UserError
from unibct.methods import METHODS, Batch, OldKnowledge, Settings, find_method
from unibct.prototypes import class_prototypes

SETTINGS = Settings(scale=16.0, margin=0.3, tau=0.05, lam=0.9, drop=0.2)


def knowledge(**changes):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(4).repeat_interleave(6)
    values = {
        "embeddings": torch.nn.functional.normalize(
            torch.randn(24, 8, generator=generator) + 2 * torch.eye(8)[labels], dim=1
        ),
        "labels": labels,
        "class_names": ("a", "b", "c", "d"),
        "old_class_names": ("d", "c", "x", "b", "a"),
        "old_class_weights": torch.randn(5, 8, generator=generator),
    }
    return OldKnowledge(**(values | changes))


def batch():
    generator = torch.Generator().manual_seed(1)
    rows = torch.tensor([0, 7, 13, 23, 5, 9])
    embeddings = torch.randn(6, 8, generator=generator).requires_grad_()
    return Batch(embeddings, knowledge().labels[rows], rows)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_a_loss_whose_gradient_reaches_the_new_model_only(name):
    old = knowledge()
    before = old.embeddings.clone()
    method = find_method(name).make(old, SETTINGS)
    new = torch.randn(24, 8)
    method.refresh(new if method.needs_new_embeddings else None)
    step = batch()
    loss = method.loss(step)
    assert loss.ndim == 0
    assert torch.isfinite(loss)
    assert torch.equal(old.embeddings, before)
    assert not old.embeddings.requires_grad
    if name == "none":
        assert float(loss) == 0
    else:
        loss.backward()
        assert float(step.embeddings.grad.abs().sum()) > 0
    assert all(not tensor.requires_grad for tensor in method.state().values())


def test_each_method_is_the_formula_it_names():
    old, step = knowledge(), batch()
    new = torch.randn(24, 8, generator=torch.Generator().manual_seed(2))

    def loss(name):
        method = find_method(name).make(old, SETTINGS)
        method.refresh(new if method.needs_new_embeddings else None)
        return method.loss(step)

    def on(vectors):
        return losses.arcface(step.embeddings, vectors, step.labels, scale=16.0, margin=0.3)

    old_rows = old.embeddings[step.rows]
    options = {"tau": 0.05, "lam": 0.9, "drop": 0.2}
    assert torch.equal(loss("regress"), losses.regress(step.embeddings, old_rows))
    assert torch.equal(loss("contrast"), losses.contrast(step.embeddings, old_rows, step.labels))
    assert torch.equal(loss("bct"), on(old.old_class_weights[[4, 3, 1, 0]]))
    for name, kind in [
        ("unibct-centroid", "centroid"),
        ("unibct-drop", "drop"),
        ("unibct", "structural"),
    ]:
        prototypes = class_prototypes(old.embeddings, old.labels, new=new, kind=kind, **options)
        assert torch.equal(loss(name), on(prototypes))


def test_structural_prototypes_follow_the_new_model_and_survive_a_checkpoint():
    old = knowledge()
    method = find_method("unibct").make(old, SETTINGS)
    method.refresh(torch.randn(24, 8, generator=torch.Generator().manual_seed(1)))
    first = {k: v.clone() for k, v in method.state().items()}
    method.refresh(torch.randn(24, 8, generator=torch.Generator().manual_seed(2)))
    assert not torch.equal(method.state()["class_vectors"], first["class_vectors"])
    other = find_method("unibct").make(old, SETTINGS)
    other.load_state(first)
    assert torch.equal(other.state()["class_vectors"], first["class_vectors"])


def test_bct_refuses_new_classes_and_a_missing_classifier():
    with pytest.raises(UserError, match="does not know 1 of the 4 new classes, first 'a'"):
        find_method("bct").make(knowledge(old_class_names=("d", "c", "x", "b", "y")), SETTINGS)
    with pytest.raises(UserError, match="needs the old classifier"):
        find_method("bct").make(knowledge(old_class_weights=None), SETTINGS)


def test_names():
    with pytest.raises(UserError, match="unknown method 'magic'; choose one of none, regress"):
        find_method("magic")
    assert [name for name, entry in METHODS.items() if not entry.needs_old_model] == ["none"]
