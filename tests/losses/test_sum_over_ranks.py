import torch

from tests.distributed.thread_ranks import run_ranks
from unibct.distributed.ranks import ALONE
from unibct.losses.sum_over_ranks import sum_over_ranks


def test_one_process_keeps_its_total():
    total = torch.tensor(6.0)
    assert sum_over_ranks(total, ALONE) is total


def test_each_rank_gets_the_sum_of_all_and_the_gradient_of_its_own():
    def of_rank(ranks):
        x = torch.tensor(float(ranks.rank), requires_grad=True)
        own = (x + 1).square()  # 1, 4, 9
        found = sum_over_ranks(own, ranks)
        (2 * found).backward()
        return found.item(), x.grad.item(), own.item()

    assert run_ranks(3, of_rank) == [(14.0, 4.0, 1.0), (14.0, 8.0, 4.0), (14.0, 12.0, 9.0)]
