import torch

from unibct.distributed.class_shards import ClassPart
from unibct.distributed.ranks import ALONE
from unibct.losses.arcface import arcface
from unibct.losses.sharded_arcface import sharded_arcface


def test_arcface_on_a_sample_by_hand():
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(6, 4, generator=generator, requires_grad=True)
    weights = torch.randn(9, 4, generator=generator, requires_grad=True)
    labels, rows = torch.tensor([0, 4, 4, 7, 8, 0]), torch.tensor([0, 2, 4, 7, 8])
    part = ClassPart(9, ALONE, rows)
    found = sharded_arcface(embeddings, part.rows(weights), labels, part)
    places = torch.tensor([0, 2, 2, 3, 4, 0])
    expected = arcface(embeddings, weights[rows], places)
    assert torch.allclose(found, expected)
    ours = torch.autograd.grad(found, (embeddings, weights), retain_graph=True)
    theirs = torch.autograd.grad(expected, (embeddings, weights))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert (ours[1][[1, 3, 5, 6]] == 0).all()


def test_all_classes_in_one_process_are_plain_arcface():
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(6, 4, generator=generator)
    weights = torch.randn(9, 4, generator=generator)
    labels = torch.tensor([0, 4, 4, 7, 8, 0])
    loss = sharded_arcface(embeddings, weights, labels, ClassPart(9), scale=16.0, margin=0.3)
    assert torch.equal(loss, arcface(embeddings, weights, labels, scale=16.0, margin=0.3))
