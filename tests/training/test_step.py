from contextlib import nullcontext

import numpy as np
import pytest
import torch

from tests.training.runs import AUGMENTED, SMALL, last_checkpoint, small_context, train
from unibct.methods.base import Method
from unibct.models.model_folder import load_model
from unibct.training import run_folder
from unibct.training.batches import draw_epoch, remaining_batches
from unibct.training.optimizer import LossScale
from unibct.training.state import initial_state
from unibct.training.step import TrainingStep


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_other_precisions_train(precision, eighty_images, eighty_old, tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "remove_checkpoints", lambda folder: None)
    recipe = AUGMENTED.updated(precision=precision)
    train(eighty_images, recipe, tmp_path / "whole", old=eighty_old)
    exact = train(eighty_images, AUGMENTED, tmp_path / "exact", old=eighty_old)
    near, state = load_model(tmp_path / "whole"), last_checkpoint(tmp_path / "whole").state
    assert exact.fingerprint != near.fingerprint
    losses = [row["loss_cls"] for row in state["metrics"]]
    assert losses[-1] < 0.8 * losses[0]
    if precision == "bfloat16":
        images = np.stack([eighty_images.read(i) for i in eighty_images.ids])
        assert (exact.embed(images) * near.embed(images)).sum(axis=1).mean() > 0.9
    else:
        assert state["loss_scale"][0] < 2**16  # its first steps overflowed, and were left out


def one_step(images, recipe):
    """A state before and after a step."""
    context = small_context(images, recipe, workers=0)
    before, state = initial_state(context), initial_state(context)
    draws = draw_epoch(context, state)
    batch = next(remaining_batches(context, draws, 0))
    state.network.train()
    result = TrainingStep(context, state).take(batch, draws.method_rng)
    assert state.loss_sums[0] == result.loss_cls
    return context, batch, before, state


def test_a_step_changes_network_and_class_weights(four_classes):
    _, _, before, after = one_step(four_classes, SMALL)
    for one, other in zip(before.network_parameters(), after.network_parameters(), strict=True):
        assert not torch.equal(one, other)
    assert not torch.equal(before.class_weights, after.class_weights)


def test_a_step_leaves_classes_alone_that_are_not_sampled(split_images):
    recipe = SMALL.updated(sample_rate=0.1, batch_size=4)
    context, batch, before, after = one_step(split_images[1], recipe)
    changed = (before.class_weights != after.class_weights).any(dim=1)
    present = set(context.pixels.images.labels[batch.rows].tolist())
    assert present <= set(torch.nonzero(changed)[:, 0].tolist())
    assert changed.sum() == max(len(present), round(0.1 * len(context.images.class_names)))
    assert not after.class_momentum[~changed].any()


def test_an_overflow_changes_nothing_but_the_scale(four_classes, monkeypatch):
    monkeypatch.setattr("unibct.training.step.autocast", lambda *_: nullcontext())  # slow on a CPU
    half = SMALL.updated(precision="float16")
    _, _, before, after = one_step(four_classes, half)
    assert after.loss_scale == LossScale(2.0**16, 1)
    assert not torch.equal(before.class_weights, after.class_weights)
    unscale = LossScale.unscale
    monkeypatch.setattr(LossScale, "unscale", lambda *arguments: unscale(*arguments) and False)
    _, _, before, after = one_step(four_classes, half)
    assert after.loss_scale == LossScale(2.0**15, 0)
    for one, other in zip(before.network_parameters(), after.network_parameters(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(before.class_weights, after.class_weights)


def test_the_loss_scale_changes_no_bit_of_a_step(four_classes, monkeypatch):
    monkeypatch.setattr("unibct.training.step.autocast", lambda *_: nullcontext())
    _, _, _, plain = one_step(four_classes, SMALL)
    _, _, _, scaled = one_step(four_classes, SMALL.updated(precision="float16"))
    assert torch.equal(plain.class_weights, scaled.class_weights)
    for one, other in zip(plain.network_parameters(), scaled.network_parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_method_is_told_how_much_of_the_training_is_done(four_classes):
    class Asking(Method):
        def classified(self, batch):
            told.append(batch.progress)
            return batch.embeddings

    told: list[float] = []
    context = small_context(four_classes, SMALL.updated(warmup_epochs=0), workers=0)
    state = initial_state(context)
    state.use_method(Asking())
    state.epoch, draws = 1, draw_epoch(context, state)
    step = TrainingStep(context, state)
    for batch in remaining_batches(context, draws, 0):
        step.take(batch, draws.method_rng)
        state.step += 1
    assert told == pytest.approx([(1 + place / 6) / 2 for place in (1, 3, 5)])  # of two epochs
