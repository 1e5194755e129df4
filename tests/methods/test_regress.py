import torch

from tests.methods.cases import knowledge, refreshed_loss
from unibct.losses.regress import regress


def test_regress_is_its_formula():
    loss, step = refreshed_loss("regress")
    assert torch.equal(loss, regress(step.embeddings, knowledge().embeddings[step.rows]))
