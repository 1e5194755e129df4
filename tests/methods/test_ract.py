import torch

from tests.methods.cases import knowledge, refreshed_loss
from unibct.losses.contrast import contrast, mixed_contrast


def test_ract_is_its_formula_at_the_published_temperature():
    loss, step = refreshed_loss("ract")
    old_rows = knowledge().embeddings[step.rows]
    assert torch.equal(loss, mixed_contrast(step.embeddings, old_rows, step.labels, tau=0.01))
    assert loss > contrast(step.embeddings, old_rows, step.labels, tau=0.01)  # more negatives
