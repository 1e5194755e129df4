import torch

from tests.methods.cases import knowledge, refreshed_loss
from unibct.losses.contrast import contrast


def test_contrast_is_its_formula():
    loss, step = refreshed_loss("contrast")
    old_rows = knowledge().embeddings[step.rows]
    assert torch.equal(loss, contrast(step.embeddings, old_rows, step.labels))
