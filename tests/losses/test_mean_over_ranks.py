import torch

from tests.distributed.twins import Twins
from unibct.distributed.ranks import ALONE
from unibct.losses.mean_over_ranks import mean_over_ranks


def test_one_process_takes_the_plain_mean():
    assert float(mean_over_ranks(torch.tensor(6.0), torch.tensor(4), ALONE)) == 1.5
    assert float(mean_over_ranks(torch.tensor(0.0), torch.tensor(0), ALONE)) == 0


def test_two_equal_ranks_each_return_the_mean_of_all_terms():
    # Both have 4 terms with the sum 6: each returns 6 · 2 / 8.
    assert float(mean_over_ranks(torch.tensor(6.0), torch.tensor(4), Twins())) == 1.5
