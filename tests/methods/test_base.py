from dataclasses import replace

import numpy as np
import torch

from tests.methods.cases import SETTINGS, batch, knowledge, small_arcface
from unibct.distributed.ranks import ALONE, ClassesInUse, Ranks
from unibct.methods.base import Method


def test_the_base_does_nothing():
    method, step = Method(), batch()
    assert method.classified(step) is step.embeddings
    assert method.parameters() == []
    assert method.state() == {}


def test_old_embeddings_of_a_batch_are_mirrored_where_its_images_are():
    plain = knowledge()
    old = knowledge(flipped=-plain.embeddings)
    step = batch(flipped=torch.tensor([True, False, True, False, False, True]))
    sign = torch.tensor([-1.0, 1.0, -1.0, 1.0, 1.0, -1.0])[:, None]
    assert torch.equal(old.of(step), sign * plain.embeddings[step.rows])
    assert torch.equal(old.rows(step.rows), plain.embeddings[step.rows])
    assert torch.equal(old.of(batch()), plain.embeddings[step.rows])
    assert torch.equal(plain.of(step), plain.embeddings[step.rows])


def test_old_embeddings_on_disk_are_read_like_those_in_memory(tmp_path):
    plain, step = knowledge(), batch()
    np.save(tmp_path / "old.npy", plain.embeddings.numpy())
    stored = knowledge(embeddings=np.load(tmp_path / "old.npy", mmap_mode="r"))
    assert torch.equal(stored.of(step), plain.of(step))
    assert torch.equal(stored.whole(), plain.embeddings)
    for kind in ("centroid", "drop"):
        ours, theirs = (old.prototypes(kind, SETTINGS) for old in (stored, plain))
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_a_rank_holds_its_share_of_the_classes():
    assert [list(knowledge(ranks=Ranks(r, 3)).own_classes) for r in range(3)] == [[0], [1], [2, 3]]


def test_a_batch_uses_all_class_vectors_or_those_of_its_sample():
    vectors = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))
    step = batch(rows=(0, 13))  # of the classes 0 and 2
    assert step.ranks is ALONE
    assert step.in_use(vectors) is vectors
    whole = step.arcface(step.embeddings, vectors, SETTINGS)
    assert torch.equal(whole, small_arcface(step.embeddings, vectors, step.labels))
    sampled = batch(rows=(0, 13), part=ClassesInUse(4, ALONE, torch.tensor([0, 2])))
    assert torch.equal(sampled.in_use(vectors), vectors[[0, 2]])
    loss = sampled.arcface(sampled.embeddings, sampled.in_use(vectors), SETTINGS)
    want = small_arcface(step.embeddings, vectors[[0, 2]], torch.tensor([0, 1]))
    assert torch.allclose(loss, want)


class FewOfMany:
    """The embeddings of very many images, of which only some are asked for."""

    def __init__(self, images):
        self.images = images

    def __getitem__(self, rows):
        self.asked = rows
        assert rows.max() < self.images
        return np.ones((len(rows), 2), dtype=np.float32)


def test_the_mean_of_a_large_set_is_that_of_a_sample_over_all_of_it():
    images = 100_000_000  # float32 would round the last row up to one that is not there
    many = FewOfMany(images)
    labels = torch.zeros(1, dtype=torch.int64).expand(images)
    knowledge(embeddings=many, labels=labels).mean()
    assert (many.asked[0], many.asked[-1], len(set(many.asked))) == (0, images - 1, 65_536)
    for few in (1, 24, 65_536):
        some = FewOfMany(few)
        knowledge(embeddings=some, labels=labels[:few]).mean()
        assert some.asked.tolist() == torch.linspace(0, few - 1, few).long().tolist()


def test_what_is_read_ahead_is_what_a_batch_looks_up():
    plain = knowledge()
    stored = plain.embeddings.numpy()
    old = knowledge(embeddings=stored, flipped=-stored)
    for flipped in (None, torch.tensor([True, False, True, False, False, True])):
        step = batch(flipped=flipped)
        mask = None if flipped is None else flipped.numpy()
        ahead = old.read_ahead(step.rows.numpy(), mask)
        assert np.array_equal(ahead, old.of(step).numpy())
        given = replace(step, old=torch.from_numpy(ahead))
        assert old.of(given) is given.old
    assert plain.read_ahead(step.rows.numpy(), None) is None  # it is on the device


def test_the_rows_of_all_ranks_are_gathered_unless_they_are_known():
    step = batch()
    assert torch.equal(step.rows_of_all_ranks(), step.rows)
    known = replace(step, whole_batch=torch.arange(12))
    assert known.rows_of_all_ranks() is known.whole_batch
