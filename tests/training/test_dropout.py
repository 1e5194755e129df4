import os
import signal

import numpy as np
import pytest
import torch
from torch import nn

from tests.training.recipes import AUGMENTED
from tests.training.run_results import require_same
from unibct.distributed.ranks import ALONE, Ranks
from unibct.errors import UserError
from unibct.training import run_folder
from unibct.training.dropout import HeadDropout, kept_inputs, seed_step
from unibct.training.step import TrainingStep
from unibct.training.train import train


def head_only():
    network = nn.Sequential()
    network.add_module("fc", nn.Identity())
    return network


def test_a_share_of_the_head_s_inputs_is_left_out_in_training_only():
    network = head_only()
    HeadDropout(network, 0.25, ALONE).set_place(0, 0, 0)
    found = network.train()(torch.ones(10_000))
    assert float((found == 0).float().mean()) == pytest.approx(0.25, abs=0.02)
    assert torch.allclose(found[found > 0], torch.tensor(4 / 3))
    assert torch.equal(network.eval()(torch.ones(9)), torch.ones(9))
    with pytest.raises(UserError, match="no head"):
        HeadDropout(nn.Sequential(nn.Linear(2, 2)), 0.5, ALONE)


def split_mix_64(state):
    """Steele, Lea and Flood (2014), in Python's whole numbers."""
    mask = 2**64 - 1
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & mask
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & mask
    return state ^ (state >> 31)


def test_what_is_left_out_is_a_function_of_the_place_in_the_batch():
    key, share = -(2**40) + 12345, 0.3
    places = range(1, 6 * 7 + 1)
    numbers = [split_mix_64((key + n * 0x9E3779B97F4A7C15) % 2**64) / 2**64 for n in places]
    expected = (torch.tensor(numbers, dtype=torch.float64) >= share).view(6, 7)
    key = torch.tensor(key)
    assert torch.equal(kept_inputs(key, torch.Size((6, 7)), 0, share), expected)
    parts = [kept_inputs(key, torch.Size((2, 7)), rank, share) for rank in range(3)]
    assert torch.equal(torch.cat(parts), expected)


def test_each_step_and_each_input_is_left_out_by_itself():
    values, found = torch.ones(64, 128), []
    for place in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]:
        network = head_only()
        HeadDropout(network, 0.5, ALONE).set_place(*place)
        found.append((network.train()(values) > 0).float().flatten())
    agreement = torch.corrcoef(torch.stack([*found, found[0].roll(1), found[0].roll(128)]))
    assert float((agreement - torch.eye(6)).abs().max()) < 0.05  # 4.5 deviations
    network = head_only()
    HeadDropout(network, 0.5, Ranks(1, 2)).set_place(0, 0, 0)
    assert torch.equal((network.train()(values[32:]) > 0).flatten(), found[0].view(2, -1)[1] > 0)


def test_what_a_step_draws_depends_on_its_place_only():
    def drawn(*place):
        torch.rand(3)
        seed_step(*place)
        return torch.rand(4)

    assert torch.equal(drawn(1, 2, 3, 0), drawn(1, 2, 3, 0))
    others = [drawn(0, 2, 3, 0), drawn(1, 0, 3, 0), drawn(1, 2, 0, 0), drawn(1, 2, 3, 1)]
    assert all(not torch.equal(drawn(1, 2, 3, 0), other) for other in others)


@pytest.mark.slow
def test_all_settings_together_resume_to_the_bit(eighty_images, eighty_old, tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "remove_checkpoints", lambda folder: None)
    recipe = AUGMENTED.updated(
        optimizer="adamw",
        lr=1e-3,
        backbone_lr=0.5,
        clip=1.0,
        accumulate=2,
        average=0.9,
        dropout=0.2,
        freeze="conv1",
        augment="python:tests.training.test_dropout:salted",
        batch_size=16,
    )
    options = {"old": eighty_old, "method": "unibct", "device": "cpu", "resume": True}
    before = torch.random.get_rng_state()
    train(eighty_images, recipe, tmp_path / "whole", **options)
    assert torch.equal(torch.random.get_rng_state(), before), "the caller's numbers stay"
    take, stops = TrainingStep.take, []

    def stopping(self, *arguments):
        result = take(self, *arguments)
        place = (self.state.epoch, self.state.step)
        if place in {(0, 1), (1, 2), (2, 0)} and place not in stops:
            stops.append(place)
            os.kill(os.getpid(), signal.SIGINT)
        return result

    monkeypatch.setattr(TrainingStep, "take", stopping)
    finished = False
    while not finished:
        try:
            train(eighty_images, recipe, tmp_path / "part", **options)
            finished = True
        except KeyboardInterrupt:
            pass
    assert len(stops) == 3
    require_same(tmp_path / "part", tmp_path / "whole")


def salted(pixels, rng):
    """A user's own change: some white points."""
    return np.where(rng.random(pixels.shape) < 0.02, 255, pixels).astype(np.uint8)
