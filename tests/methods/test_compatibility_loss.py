import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from unibct.errors import UserError
from unibct.losses import arcface
from unibct.methods import METHODS, find_method
from unibct.methods.base import Batch, OldEmbeddings, Settings
from unibct.methods.compatibility_loss import CompatibilityLoss
from unibct.prototypes.class_prototypes import class_prototypes

LABELS = torch.arange(24) % 4
OLD = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
ROWS = torch.tensor([0, 5, 7, 13, 22])
NEW = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
WEIGHTS = torch.randn(4, 6, generator=torch.Generator().manual_seed(2))
USABLE = [name for name in METHODS if name not in ("bct", "mixbct", "none")]
STEP = (NEW, LABELS[ROWS], ROWS, WEIGHTS, 0.5)


def refreshed(name, old=OLD):
    loss = CompatibilityLoss(name, old=old, labels=LABELS)
    loss.refresh(OLD)
    return loss


def own_method(name, scale):
    names = tuple("0123")
    old = OldEmbeddings(normalize(OLD), LABELS, names, names, None)
    settings = Settings(scale=scale, margin=0.5, tau=0.05, lam=0.9, drop=0.1)
    return find_method(name).make(old, settings)


@pytest.mark.parametrize("name", USABLE)
def test_it_is_the_method_s_own_loss(name):
    torch.manual_seed(0)
    loss = CompatibilityLoss(name, old=OLD.numpy(), labels=LABELS.numpy(), scale=16.0)
    loss.refresh(OLD)
    torch.manual_seed(0)
    method = own_method(name, 16.0)
    method.refresh(OLD if method.needs_new_embeddings else None)
    assert torch.equal(loss(*STEP), method.loss(Batch(*STEP)))
    assert len(list(loss.parameters())) == len(method.parameters())


def test_centroids_by_hand():
    loss = CompatibilityLoss("unibct-centroid", old=OLD, labels=LABELS)
    prototypes = class_prototypes(LABELS, old=OLD, kind="centroid")
    expected = arcface(NEW, prototypes, LABELS[ROWS], scale=64.0, margin=0.5)
    assert float(loss(NEW, LABELS[ROWS], ROWS)) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("bct", "bct needs the old model's class weights"),
        ("mixbct", "mixbct changes the classification loss"),
        ("unibct@warmup_epochs=0,eta=2", r"warmup_epochs, eta is a setting of unibct\.train"),
    ],
)
def test_what_needs_more_than_embeddings_is_refused(method, words):
    with pytest.raises(UserError, match=words):
        CompatibilityLoss(method, old=OLD, labels=LABELS)


@pytest.mark.parametrize(
    ("old", "labels", "words"),
    [
        (OLD, np.arange(3), "labels has 3 entries, but there are 24 rows"),
        (OLD, LABELS[:, None], r"labels must have the shape \(rows,\)"),
        (OLD, LABELS.float(), "labels must be integers"),
        (OLD, LABELS - 1, "labels has the negative value -1"),
        (OLD[:0], LABELS[:0], "old is empty"),
        (OLD[0], LABELS, "old must be floating point of shape"),
        (OLD.index_fill(0, torch.tensor(3), torch.nan), LABELS, "NaN .* first in row 3"),
        (OLD.index_fill(0, torch.tensor(3), torch.nan).numpy(), LABELS, "NaN .* first in row 3"),
    ],
)
def test_bad_old_embeddings_and_labels_are_refused(old, labels, words):
    with pytest.raises(UserError, match=words):
        CompatibilityLoss(old=old, labels=labels)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"embeddings": torch.ones(5, 7)}, r"embeddings must have the shape \(batch, 6\)"),
        ({"embeddings": torch.ones(6)}, r"embeddings must have the shape \(batch, 6\)"),
        ({"labels": LABELS[:4]}, r"labels must have the shape \(5,\), .* not \(4,\)"),
        ({"labels": LABELS[ROWS][:, None]}, r"labels must have the shape \(5,\)"),
        ({"rows": ROWS[:1]}, r"rows must have the shape \(5,\)"),
        ({"class_weights": torch.ones(4, 7)}, r"class_weights must have the shape \(4, 6\)"),
        ({"class_weights": torch.ones(3, 6)}, r"class_weights must have the shape \(4, 6\)"),
    ],
)
def test_a_batch_of_a_wrong_shape_is_refused(changed, words):
    batch = {"embeddings": NEW, "labels": LABELS[ROWS], "rows": ROWS, "class_weights": WEIGHTS}
    loss = CompatibilityLoss(old=OLD, labels=LABELS)
    loss(**batch)
    with pytest.raises(UserError, match=words):
        loss(**batch | changed)


def test_the_new_embeddings_come_first_where_they_are_needed():
    loss = CompatibilityLoss("unibct", old=OLD, labels=LABELS)
    with pytest.raises(UserError, match="call refresh with its embeddings"):
        loss(NEW, LABELS[ROWS], ROWS)
    with pytest.raises(UserError, match="new has 5 rows but old has 24"):
        loss.refresh(NEW)
    with pytest.raises(UserError, match="new_embeddings has NaN or infinite values"):
        loss.refresh(OLD * torch.nan)
    loss.refresh(OLD)
    assert loss(NEW, LABELS[ROWS], ROWS).isfinite()


@pytest.mark.parametrize("name", USABLE)
def test_what_the_classifier_takes(name):
    found = CompatibilityLoss(name, old=OLD, labels=LABELS).classified(NEW)
    assert torch.equal(found, own_method(name, 64.0).classified(Batch(*STEP[:3])))
    assert torch.equal(found, NEW) == (name != "unibct-plus")


@pytest.mark.parametrize("name", USABLE)
def test_it_moves_to_another_device(name):
    """The meta device has shapes only, and refuses to compute with tensors of other devices."""
    loss = refreshed(name)
    learnt = len(list(loss.parameters()))
    assert loss.to(torch.float64) is loss
    loss = loss.float().to("meta")
    meta = [tensor.to("meta") for tensor in (NEW, LABELS[ROWS], WEIGHTS)]
    assert loss(*meta[:2], ROWS, meta[2], 0.5).device.type == "meta"
    assert loss.classified(meta[0]).device.type == "meta"
    assert [parameter.device.type for parameter in loss.parameters()] == ["meta"] * learnt
    assert all(a is b for a, b in zip(loss.parameters(), loss.method.parameters(), strict=True))
    assert "_place" not in "".join(loss.state_dict())


def test_the_old_embeddings_are_held_once():
    loss = CompatibilityLoss("unibct-plus", old=OLD, labels=LABELS).to("meta")
    assert loss.method.old_of_images is loss.method._old


def test_no_gradient_goes_into_the_old_model():
    old_network, new_network = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
    loss = CompatibilityLoss("regress", old=old_network(OLD), labels=LABELS)
    for _ in range(2):
        loss(new_network(OLD[ROWS]), LABELS[ROWS], ROWS).backward()
    assert old_network.weight.grad is None
    assert new_network.weight.grad is not None


@pytest.mark.parametrize("name", ["unibct-plus", "lce"])
def test_class_weights_that_are_missing_are_asked_for(name):
    loss = CompatibilityLoss(name, old=OLD, labels=LABELS)
    with pytest.raises(UserError, match=f"{name} needs class_weights, those of your classifier"):
        loss(NEW, LABELS[ROWS], ROWS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", USABLE)
def test_embeddings_of_another_type_are_taken_in_single_precision(name, dtype):
    """Double ones in a search for an error, short ones under autocast."""
    plain, changed = refreshed(name), CompatibilityLoss(name, old=OLD, labels=LABELS).to(dtype)
    changed.refresh(OLD)
    assert {parameter.dtype for parameter in changed.parameters()} <= {torch.float32}
    new, weights = NEW.to(dtype).requires_grad_(), WEIGHTS.to(dtype)
    found = changed(new, LABELS[ROWS], ROWS, weights, 0.5)
    assert torch.equal(found, plain(new.float(), LABELS[ROWS], ROWS, weights.float(), 0.5))
    if found.requires_grad:
        found.backward()
        assert new.grad.dtype == dtype


@pytest.mark.parametrize("name", USABLE)
def test_autocast_labels_of_any_width_and_the_length_of_old_embeddings_change_nothing(name):
    expected = refreshed(name)(*STEP)
    with torch.autocast("cpu", torch.bfloat16):
        found = refreshed(name)(NEW, LABELS[ROWS].int(), ROWS.to(torch.uint8), WEIGHTS, 0.5)
    assert torch.equal(found, expected)
    assert torch.allclose(refreshed(name, 20 * OLD)(*STEP), expected, atol=1e-6)


def test_a_classifier_may_have_classes_that_no_image_has():
    more = torch.cat([WEIGHTS, torch.ones(3, 6)])
    loss = CompatibilityLoss("lce", old=OLD, labels=LABELS)
    assert torch.equal(loss(NEW, LABELS[ROWS], ROWS, more), loss(NEW, LABELS[ROWS], ROWS, WEIGHTS))
    assert torch.isfinite(CompatibilityLoss(old=OLD, labels=LABELS)(NEW, LABELS[ROWS], ROWS, more))
