import torch

from tests.methods.cases import SETTINGS, batch, knowledge
from unibct.losses.contrast import neighbour_contrast
from unibct.methods.nccl import Nccl


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
            own_old=old.embeddings[list(rows)],
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
