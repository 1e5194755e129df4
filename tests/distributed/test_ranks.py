import numpy as np
import pytest
import torch

from tests.distributed.thread_ranks import run_ranks
from unibct.distributed.ranks import ALONE, Ranks, current_ranks, share_of
from unibct.errors import UserError


def test_shares_are_consecutive_and_differ_by_at_most_one():
    for total in (0, 1, 7, 93_431):
        for world in (1, 2, 3, 8):
            shares = [share_of(total, rank, world) for rank in range(world)]
            assert [i for share in shares for i in share] == list(range(total))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
            assert shares == [Ranks(rank, world).share(total) for rank in range(world)]


def test_the_ranks_divide_a_batch_evenly():
    assert [Ranks(rank, 3).batch_slice(12) for rank in range(3)] == [
        slice(0, 4),
        slice(4, 8),
        slice(8, 12),
    ]
    assert [Ranks(rank, 3).first for rank in range(3)] == [True, False, False]


def test_one_process_keeps_its_values():
    tensor = torch.tensor([[1.0, 2.0]], requires_grad=True)
    for same in (ALONE.summed, ALONE.largest, ALONE.gathered, ALONE.gathered_rows):
        assert same(tensor) is tensor
    assert ALONE.broadcast_from_first(tensor) is tensor
    assert ALONE.broadcast_numbers(3, True) == [3, 1]
    array = np.arange(3)
    assert ALONE.summed_array(array) is array
    assert ALONE.any(True, torch.device("cpu"))
    assert not ALONE.any(False, torch.device("cpu"))
    ALONE.barrier()


def test_without_a_launcher_there_is_one_process(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert current_ranks() is ALONE


def test_a_world_without_a_launcher_is_explained(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(UserError, match="start with `torchrun"):
        current_ranks()


def test_every_rank_has_the_first_one_s_answer_or_its_error():
    def ask(ranks):
        return ranks.ask_first(lambda: {"rank": ranks.rank, "text": "gefüllt"})

    assert run_ranks(3, ask) == [{"rank": 0, "text": "gefüllt"}] * 3
    assert ALONE.ask_first(lambda: 7) == 7

    def refuse(ranks):
        def question():
            assert ranks.first, "only the first rank looks"
            raise UserError("the folder is not empty")

        ranks.ask_first(question)

    for error in run_ranks(2, refuse):
        assert isinstance(error, UserError)
        assert str(error) == "the folder is not empty"
