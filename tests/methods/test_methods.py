import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from unibct.errors import UserError
from unibct.losses.arcface import arcface
from unibct.losses.contrast import contrast, neighbour_contrast
from unibct.losses.regress import regress
from unibct.methods import (
    ABLATIONS,
    METHODS,
    Batch,
    Method,
    OldKnowledge,
    Settings,
    find_method,
)
from unibct.methods.advbct import reversed_gradient
from unibct.methods.mixbct import MixBct
from unibct.methods.nccl import Nccl
from unibct.methods.plus import UnibctPlus
from unibct.prototypes.class_prototypes import class_prototypes
from unibct.prototypes.spread import moved_apart

SETTINGS = Settings(scale=16.0, margin=0.3, tau=0.05, lam=0.9, drop=0.2)


def knowledge(**changes):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(4).repeat_interleave(6)
    values = {
        "embeddings": F.normalize(
            torch.randn(24, 8, generator=generator) + 2 * torch.eye(8)[labels], dim=1
        ),
        "labels": labels,
        "class_names": ("a", "b", "c", "d"),
        "old_class_names": ("d", "c", "x", "b", "a"),
        "old_class_weights": torch.randn(5, 8, generator=generator),
    }
    return OldKnowledge(**(values | changes))


def batch(rows=(0, 7, 13, 23, 5, 9), seed=1, **changes):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.tensor(rows)
    embeddings = torch.randn(len(rows), 8, generator=generator).requires_grad_()
    class_weights = torch.randn(4, 8, generator=generator).requires_grad_()
    return Batch(embeddings, knowledge().labels[rows], rows, class_weights, **changes)


def small_arcface(embeddings, vectors, labels):
    return arcface(embeddings, vectors, labels, scale=16.0, margin=0.3)


@pytest.mark.parametrize("name", [*METHODS, *ABLATIONS])
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
    if name in ("none", "mixbct"):
        assert float(loss) == 0
    elif name == "plus-no-own":  # it draws the new embeddings through the classifier only
        loss.backward()
        assert step.embeddings.grad is None
        assert float(step.class_weights.grad.abs().sum()) > 0
    else:
        loss.backward()
        assert float(step.embeddings.grad.abs().sum()) > 0
    step = batch(range(24))
    replaces = not torch.equal(method.classified(step), step.embeddings)
    assert replaces == (name == "mixbct")
    assert all(not tensor.requires_grad for tensor in method.state().values())


def test_each_method_is_the_formula_it_names():
    old, step = knowledge(), batch()
    new = torch.randn(24, 8, generator=torch.Generator().manual_seed(2))

    def loss(name):
        method = find_method(name).make(old, SETTINGS)
        method.refresh(new if method.needs_new_embeddings else None)
        return method.loss(step)

    def on(vectors):
        return small_arcface(step.embeddings, vectors, step.labels)

    old_rows = old.embeddings[step.rows]
    options = {"tau": 0.05, "lam": 0.9, "drop": 0.2}
    assert torch.equal(loss("regress"), regress(step.embeddings, old_rows))
    assert torch.equal(loss("contrast"), contrast(step.embeddings, old_rows, step.labels))
    assert torch.equal(loss("bct"), on(old.old_class_weights[[4, 3, 1, 0]]))
    for name, kind in [
        ("unibct-centroid", "centroid"),
        ("unibct-drop", "drop"),
        ("unibct", "structural"),
    ]:
        prototypes = class_prototypes(old.embeddings, old.labels, new=new, kind=kind, **options)
        assert torch.equal(loss(name), on(prototypes))
    centroids = class_prototypes(old.embeddings, old.labels, kind="centroid")
    assert torch.equal(loss("ndpp"), on(moved_apart(centroids)))
    assert not torch.allclose(loss("ndpp"), on(centroids))
    shared = small_arcface(old_rows, step.class_weights, step.labels)
    own = contrast(step.embeddings, old_rows, step.labels, tau=1 / 16)
    assert torch.allclose(loss("unibct-plus"), (shared + own) / 2)


@pytest.mark.parametrize(
    ("shared", "own", "prototype"),
    [parts for parts in itertools.product([True, False], repeat=3) if any(parts)],
)
def test_unibct_plus_is_the_mean_of_its_parts(shared, own, prototype):
    old, step = knowledge(), batch()
    switches = {"shared": shared, "own": own, "prototype": prototype}
    ours = UnibctPlus(old, SETTINGS, **switches, weight=0.5).loss(step)
    old_rows = old.embeddings[step.rows]
    want = 0.0
    if shared:
        want += small_arcface(old_rows, step.class_weights, step.labels)
    if own:
        want += contrast(step.embeddings, old_rows, step.labels, tau=1 / 16)
    if prototype:
        centroids = class_prototypes(old.embeddings, old.labels, kind="centroid")
        want += small_arcface(step.embeddings, centroids, step.labels)
    assert torch.allclose(ours, 0.5 * want / sum(switches.values()))


def test_the_shared_classifier_of_unibct_plus_learns_from_the_old_embeddings():
    old, step = knowledge(), batch()
    UnibctPlus(old, SETTINGS, own=False).loss(step).backward()
    before = small_arcface(old.embeddings[step.rows], step.class_weights, step.labels)
    stepped = step.class_weights.detach() - 0.1 * step.class_weights.grad
    assert small_arcface(old.embeddings[step.rows], stepped, step.labels) < before


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


def test_bct_refuses_new_classes_and_a_missing_classifier():
    with pytest.raises(UserError, match="does not know 1 of the 4 new classes, first 'a'"):
        find_method("bct").make(knowledge(old_class_names=("d", "c", "x", "b", "y")), SETTINGS)
    with pytest.raises(UserError, match="needs the old classifier"):
        find_method("bct").make(knowledge(old_class_weights=None), SETTINGS)


def test_the_base_does_nothing():
    method, step = Method(), batch()
    assert method.classified(step) is step.embeddings
    assert method.parameters() == []
    assert method.state() == {}


@pytest.mark.parametrize(("size", "drawn"), [(1, 0), (3, 0), (4, 1), (9, 2), (10, 3), (20, 6)])
def test_mixbct_replaces_three_tenths_of_a_batch(size, drawn):
    old, step = knowledge(), batch(range(size))
    nothing_dropped = Settings(scale=16.0, margin=0.3, tau=0.05, lam=0.9, drop=0.0)
    mixed = MixBct(old, nothing_dropped).classified(step)
    is_old = (mixed == old.embeddings[step.rows]).all(dim=1)
    is_new = (mixed == step.embeddings).all(dim=1)
    assert int(is_old.sum()) == drawn
    assert torch.equal(is_new, ~is_old)


def test_mixbct_never_takes_an_old_outlier():
    old, rng = knowledge(), np.random.default_rng(0)
    method = MixBct(old, SETTINGS)
    ever = torch.zeros(24, dtype=torch.bool)
    for _ in range(50):
        step = batch(range(24), rng=rng)
        replaced = (method.classified(step) != step.embeddings).any(dim=1)
        assert int(replaced.sum()) <= 7
        ever |= replaced
    # Of six images of a class, drop = 0.2 leaves out the one farthest from the mean.
    outliers = []
    for start in range(0, 24, 6):
        rows = old.embeddings[start : start + 6].tolist()
        mean = [sum(column) / 6 for column in zip(*rows, strict=True)]
        outliers.append(start + max(range(6), key=lambda i: math.dist(rows[i], mean)))
    assert (~ever).nonzero().flatten().tolist() == outliers


def test_mixbct_draws_from_the_batch_s_generator_alone():
    method = MixBct(knowledge(), SETTINGS)

    def mixed(seed):
        return method.classified(batch(range(24), rng=np.random.default_rng(seed)))

    assert torch.equal(mixed(3), mixed(3))
    assert not torch.equal(mixed(3), mixed(4))


def test_mixbct_trains_the_classifier_on_both_and_the_network_on_new_rows_only():
    step = batch(range(24))
    mixed = MixBct(knowledge(), SETTINGS).classified(step)
    replaced = (mixed != step.embeddings).any(dim=1)
    assert 0 < int(replaced.sum()) < 24
    of_old = small_arcface(mixed[replaced], step.class_weights, step.labels[replaced])
    (gradient,) = torch.autograd.grad(of_old, step.class_weights, retain_graph=True)
    assert float(gradient.abs().sum()) > 0
    small_arcface(mixed, step.class_weights, step.labels).backward()
    assert (step.embeddings.grad[replaced] == 0).all()
    assert (step.embeddings.grad[~replaced] != 0).any(dim=1).all()


def test_the_queue_of_nccl_holds_the_last_images_seen_and_survives_a_checkpoint():
    old = knowledge()
    method = Nccl(old, SETTINGS, queue=10)
    assert len(method.state()["queue"]) == 0
    seen = []
    for seed, rows in enumerate([(0, 7, 13, 23), (1, 8, 14, 22), (2, 9, 15, 21)]):
        step = batch(rows, seed)
        ours = method.loss(step)
        seen = [*seen, *rows][-10:]
        assert method.state()["queue"].tolist() == seen
        want = neighbour_contrast(
            step.embeddings,
            step.labels,
            own=old.embeddings[list(rows)],
            others=old.embeddings[seen],
            other_labels=old.labels[seen],
            tau=0.05,
        )
        assert torch.equal(ours, want)
    assert len(seen) == 10
    other = Nccl(old, SETTINGS, queue=10)
    fresh = other.loss(batch())
    other.load_state({k: v.clone() for k, v in method.state().items()})
    again = method.loss(batch())
    assert torch.equal(other.loss(batch()), again)
    assert not torch.equal(fresh, again)


def naive_advbct(parameters, step):
    """The discriminator's loss and the point-to-set loss, without a reversed gradient."""
    first, first_bias, second, second_bias, place = parameters
    old, new = knowledge(), F.normalize(step.embeddings, dim=1)

    def logit(vectors):
        return (F.relu(vectors @ first.T + first_bias) @ second.T + second_bias)[:, 0]

    is_new, is_old = torch.sigmoid(-logit(new)), torch.sigmoid(logit(old.embeddings[step.rows]))
    centres = F.normalize(torch.stack([old.embeddings[old.labels == c].mean(0) for c in range(4)]))
    own = torch.stack(
        [(old.embeddings[old.labels == c] - centres[c]).norm(dim=1).max() for c in range(4)]
    )
    radius = own + torch.sigmoid(place) * (own.mean() - own)
    beyond = (new - centres[step.labels]).norm(dim=1) - radius[step.labels]
    return -torch.cat([is_new, is_old]).log().mean(), beyond[beyond > 0].mean()


def advbct(place=(0.0, 0.0, 0.0, 0.0)):
    method = find_method("advbct").make(knowledge(), SETTINGS)
    method.parameters()[-1].data = torch.tensor(place)
    return method


@pytest.mark.parametrize("place", [0.0, -30.0, 30.0, 1.5])
def test_advbct_is_its_formula_with_radii_between_the_class_s_own_and_the_mean(place):
    method, step = advbct((place,) * 4), batch(progress=0.4)
    adversarial, outside = naive_advbct(method.parameters(), step)
    assert torch.allclose(method.loss(step), adversarial + outside, rtol=1e-5)


@pytest.mark.parametrize("progress", [0.0, 0.1, 1.0])
def test_advbct_reverses_the_gradient_of_the_network_but_not_of_the_discriminator(progress):
    method, step = advbct((0.3, -0.3, 1.0, 0.0)), batch(progress=progress)
    parameters = method.parameters()
    adversarial, outside = naive_advbct(parameters, step)
    (to_deceive,) = torch.autograd.grad(adversarial, step.embeddings, retain_graph=True)
    (to_centre,) = torch.autograd.grad(outside, step.embeddings, retain_graph=True)
    learnt = torch.autograd.grad(adversarial + outside, parameters)
    assert float(to_deceive.abs().max()) > 1e-3
    method.loss(step).backward()
    strength = math.tanh(5 * progress)  # = 2/(1 + exp(−10·progress)) − 1
    want = to_centre - strength * to_deceive
    assert torch.allclose(step.embeddings.grad, want, atol=1e-6)
    for parameter, gradient in zip(parameters, learnt, strict=True):
        assert float(parameter.grad.abs().sum()) > 0
        assert torch.allclose(parameter.grad, gradient, atol=1e-6)


def test_a_reversed_gradient():
    x = torch.tensor([[1.0, -2.0]], requires_grad=True)
    y = reversed_gradient(x, 0.25)
    assert torch.equal(y, x)
    (y * torch.tensor([[3.0, 8.0]])).sum().backward()
    assert torch.equal(x.grad, torch.tensor([[-0.75, -2.0]]))


def test_what_advbct_has_learnt_survives_a_checkpoint():
    learnt, fresh, step = advbct(), advbct(), batch(progress=0.5)
    learnt.loss(step).backward()
    for parameter in learnt.parameters():
        parameter.data -= parameter.grad
    with torch.no_grad():
        wanted, before = learnt.loss(step), fresh.loss(step)
        assert not torch.allclose(wanted, before)
        fresh.load_state({})
        assert torch.equal(fresh.loss(step), before)
        fresh.load_state({k: v.clone() for k, v in learnt.state().items()})
        assert torch.equal(fresh.loss(step), wanted)


def test_names():
    with pytest.raises(UserError, match="unknown method 'magic'; choose one of none, regress"):
        find_method("magic")
    assert [name for name, entry in METHODS.items() if not entry.needs_old_model] == ["none"]
    assert [name for name, entry in METHODS.items() if not entry.has_warmup] == ["unibct-plus"]
    assert not set(METHODS) & set(ABLATIONS)
