import math

import torch

from unibct.losses.regress import regress


def test_regress_by_hand():
    new = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    old = torch.tensor([[5.0, 0.0], [1.0, 0.0]])
    assert math.isclose(float(regress(new, old)), (0 + 2) / 2, rel_tol=1e-6)
