import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.methods.cases import SETTINGS, batch, knowledge, refreshed_loss, small_arcface
from unibct.losses import contrast
from unibct.methods.plus import UnibctPlus, cone_centre
from unibct.prototypes.class_prototypes import class_prototypes


def centre_of(old):
    """The mean cosine of two old embeddings, their own included, times their mean."""
    rows = F.normalize(old.embeddings, dim=1)
    cosines = [float(one @ other) for one in rows for other in rows]
    return sum(cosines) / len(cosines) * rows.mean(dim=0)


def from_centre(vectors, old=None):
    """Vectors of length 1 minus the centre of the old embeddings."""
    return F.normalize(vectors, dim=1) - centre_of(knowledge() if old is None else old)


def distance_part(step):
    """Half of s times the mean of d²/(2·0.25), or |d| − 0.125 from 0.25 on: d = distance/r − 1."""
    old_distances = from_centre(knowledge().embeddings).norm(dim=1)
    radius = float(old_distances.square().mean()) ** 0.5
    total = 0.0
    for row in from_centre(step.embeddings.detach()):
        gap = abs(float(row.norm()) / radius - 1)
        total += gap**2 / 0.5 if gap < 0.25 else gap - 0.125
    return 0.5 * 16 * total / len(step.embeddings)


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize(
    ("shared", "own", "prototype"),
    [parts for parts in itertools.product([True, False], repeat=3) if any(parts)],
)
def test_unibct_plus_is_the_mean_of_its_parts(shared, own, prototype, centre):
    old, step = knowledge(), batch()
    switches = {"shared": shared, "own": own, "prototype": prototype}
    ours = UnibctPlus(old, SETTINGS, **switches, centre=centre, weight=0.5).loss(step)
    measured = from_centre if centre else torch.clone
    old_rows, new_rows = measured(old.embeddings[step.rows]), measured(step.embeddings)
    want = 0.0
    if shared:
        want += small_arcface(old_rows, step.class_weights, step.labels)
    if own:
        want += contrast(step.labels, new=new_rows, old=old_rows, tau=1 / 16)
    if prototype:
        centroids = class_prototypes(old.labels, old=old.embeddings, kind="centroid")
        want += small_arcface(new_rows, measured(centroids), step.labels)
    third = distance_part(step) if centre else 0.0
    want = want / sum(switches.values()) + third
    assert torch.allclose(ours, 0.5 * want)
    if (shared, own, prototype, centre) == (True, True, False, True):  # what it is by default
        assert torch.allclose(refreshed_loss("unibct-plus")[0], want)


def test_the_classifier_measures_from_the_centre():
    step = batch()
    assert torch.allclose(
        UnibctPlus(knowledge(), SETTINGS).classified(step), from_centre(step.embeddings)
    )
    assert UnibctPlus(knowledge(), SETTINGS, centre=False).classified(step) is step.embeddings


def test_another_dimension_is_not_measured_from_the_centre():
    wide = replace(batch(), embeddings=torch.randn(6, 12))
    assert UnibctPlus(knowledge(), SETTINGS).classified(wide) is wide.embeddings
    step = batch(projected=True)
    ours, plain = (UnibctPlus(knowledge(), SETTINGS, centre=c).loss(step) for c in (True, False))
    assert torch.equal(ours, plain)


def test_a_cone_of_old_embeddings_looks_like_the_same_ones_around_zero():
    """Old embeddings that share one direction: from their centre, the classes are as far apart."""
    old = knowledge()
    shared = torch.zeros(8)
    shared[7] = 10.0
    cone = knowledge(embeddings=F.normalize(old.embeddings + shared, dim=1))
    cosines = F.normalize(from_centre(cone.embeddings, cone), dim=1)
    assert float((cone.embeddings @ cone.embeddings.T).min()) > 0.9
    assert float((cosines @ cosines.T).min()) < -0.3
    step = batch()
    plain = UnibctPlus(cone, SETTINGS, own=False, centre=False).loss(step)
    assert not torch.allclose(UnibctPlus(cone, SETTINGS, own=False).loss(step), plain, rtol=0.01)


def test_the_shared_classifier_of_unibct_plus_learns_from_the_old_embeddings():
    old, step = knowledge(), batch()
    UnibctPlus(old, SETTINGS, own=False).loss(step).backward()
    old_rows = from_centre(old.embeddings[step.rows])
    before = small_arcface(old_rows, step.class_weights, step.labels)
    stepped = step.class_weights.detach() - 0.1 * step.class_weights.grad
    assert small_arcface(old_rows, stepped, step.labels) < before


def test_from_the_old_weights_the_loss_has_half_its_weight():
    old, step = knowledge(), batch()
    cold, warm = (
        UnibctPlus(old, replace(SETTINGS, warm_start=start)).loss(step) for start in (False, True)
    )
    assert torch.allclose(warm, cold / 2)


def test_the_centre_is_the_mean_in_a_narrow_cone_and_zero_without_one():
    direction = F.normalize(torch.ones(8), dim=0)
    point, radius = cone_centre(0.9 * direction)
    assert torch.allclose(point, 0.9**3 * direction)
    assert radius == pytest.approx((1 - 2 * 0.9**4 + 0.9**6) ** 0.5)
    point, radius = cone_centre(torch.zeros(8))
    assert float(point.norm()) == 0
    assert radius == 1


def test_the_radius_of_a_very_narrow_cone_is_not_too_small():
    direction = F.normalize(torch.ones(8), dim=0)
    for length in (0.99, 0.999, 1.0):
        point, radius = cone_centre(length * direction)
        assert radius == pytest.approx(0.2)
        # The mean of ‖v − c‖² of old embeddings of length 1 whose mean is μ: 1 − 2⟨c, μ⟩ + ‖c‖².
        squared = 1 - 2 * float(point @ direction) * length + float(point @ point)
        assert squared == pytest.approx(0.04, abs=1e-6)
