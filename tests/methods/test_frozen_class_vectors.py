import pytest
import torch

from tests.methods.cases import SETTINGS, batch, small_arcface
from unibct.errors import UserError
from unibct.methods.frozen_class_vectors import FrozenClassVectors


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
