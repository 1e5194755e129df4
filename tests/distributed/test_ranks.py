import numpy as np
import pytest
import torch

from tests.distributed.thread_ranks import run_ranks
from unibct.distributed.ranks import (
    ALONE,
    ClassesInUse,
    Ranks,
    current_ranks,
    sampled_classes,
    step_rows,
)
from unibct.errors import UserError


def test_shares_are_consecutive_and_differ_by_at_most_one():
    for total in (0, 1, 7, 93_431):
        for world in (1, 2, 3, 8):
            shares = [Ranks(rank, world).share(total) for rank in range(world)]
            assert [i for share in shares for i in share] == list(range(total))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_the_ranks_divide_a_batch_evenly():
    parts = [slice(0, 4), slice(4, 8), slice(8, 12)]
    assert [Ranks(rank, 3).batch_slice(12) for rank in range(3)] == parts
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


RNG = np.random.default_rng


def test_each_label_has_one_place_among_the_rows_of_one_rank():
    labels = torch.tensor([0, 3, 4, 7, 8])
    vectors = torch.arange(9)[:, None]
    for world in (1, 2, 3):
        parts = [ClassesInUse(9, Ranks(rank, world)) for rank in range(world)]
        assert [index for part in parts for index in part.range] == list(range(9))
        assert [part.whole for part in parts] == [world == 1] * world
        columns = torch.stack([part.columns(labels) for part in parts])
        assert ((columns >= 0).sum(dim=0) == 1).all()
        for part, places in zip(parts, columns, strict=True):
            own = part.rows(vectors[part.range.start : part.range.stop])[:, 0]
            assert torch.equal(own[places[places >= 0]], labels[places >= 0])


def test_places_among_sampled_rows():
    part = ClassesInUse(10, Ranks(1, 2), torch.tensor([0, 2, 4]))  # of the classes 5 to 9
    assert not part.whole
    assert part.rows(torch.arange(5, 10)).tolist() == [5, 7, 9]
    assert part.columns(torch.tensor([7, 9, 5, 4, 0])).tolist() == [1, 2, 0, -1, -1]


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.99])
def test_a_sample_holds_the_batch_s_classes_and_random_others(rate):
    labels, own = np.array([3, 3, 15, 40, 7]), range(5, 35)
    found = [sampled_classes(labels, own, rate, RNG(seed)) for seed in range(300)]
    for rows in found:
        assert list(rows) == sorted(set(rows.tolist()))
        assert len(rows) == max(round(rate * 30), 2)
        assert {2, 10} <= set(rows.tolist())
        assert 0 <= rows.min() <= rows.max() < 30
    counts = np.bincount(np.concatenate(found), minlength=30) / 300
    others = np.delete(counts, [2, 10])
    expected = (round(rate * 30) - 2) / 28
    assert abs(others.mean() - expected) < 1e-9
    assert np.abs(others - expected).max() < 0.15
    assert np.array_equal(sampled_classes(labels, own, rate, RNG(0)), found[0])


def test_a_sample_of_few_is_the_batch_s_classes():
    assert sampled_classes(np.arange(8), range(10), 0.1, RNG(0)).tolist() == list(range(8))
    assert len(sampled_classes(np.array([99]), range(10), 0.01, RNG(0))) == 1
    with pytest.raises(UserError, match="sample_rate must lie in"):
        sampled_classes(np.arange(3), range(10), 0.0, RNG(0))


def test_a_step_on_all_rows_is_torch_s():
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(7, 3, generator=generator)
    parameter = torch.nn.Parameter(weights.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9, weight_decay=0.01)
    momentum = torch.zeros_like(weights)
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    for _ in range(4):
        gradient = torch.randn(7, 3, generator=generator)
        parameter.grad = gradient
        optimizer.step()
        step_rows(weights, momentum, torch.arange(7), gradient, **options)
    assert torch.allclose(weights, parameter.detach(), atol=1e-6)
    before, kept = weights.clone(), momentum.clone()
    step_rows(weights, momentum, torch.tensor([1, 5]), gradient[:2], **options)
    assert torch.equal(weights[[0, 2, 3, 4, 6]], before[[0, 2, 3, 4, 6]])
    assert torch.equal(momentum[[0, 2, 3, 4, 6]], kept[[0, 2, 3, 4, 6]])
    assert not torch.equal(weights[[1, 5]], before[[1, 5]])
