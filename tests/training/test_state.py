from dataclasses import replace
from types import SimpleNamespace

import torch

from tests.distributed.twins import Twins
from tests.training.runs import AUGMENTED, SMALL, small_context, train
from unibct.distributed.ranks import Ranks
from unibct.training import loop
from unibct.training import state as class_weights
from unibct.training.batches import draw_epoch, remaining_batches
from unibct.training.optimizer import LossScale
from unibct.training.run_folder import find_checkpoint, read_checkpoint
from unibct.training.state import initial_state, restore_state, save_state, share_buffers
from unibct.training.step import TrainingStep


def test_class_weights_are_drawn_alike_for_any_ranks(monkeypatch):
    monkeypatch.setattr(class_weights, "_CHUNK", 16)
    whole = torch.randn(50, 8, generator=torch.Generator().manual_seed(3)) * 0.01
    for world in (1, 3):
        parts = [
            class_weights.initial_class_weights(50, 8, 3, Ranks(rank, world).share(50))
            for rank in range(world)
        ]
        assert torch.equal(torch.cat(parts), whole)


def test_known_classes_get_the_old_weights_on_each_rank():
    old_weights = torch.arange(6.0).reshape(3, 2)
    old = SimpleNamespace(class_identities=("c", "a", "x"), class_weights=old_weights)
    names = ("a", "b", "c", "d")
    expected = torch.full((4, 2), -1.0)
    expected[0], expected[2] = old_weights[1], old_weights[0]
    for world in (1, 2):
        parts = []
        for rank in range(world):
            own_classes = Ranks(rank, world).share(4)
            weights = torch.full((len(own_classes), 2), -1.0)
            class_weights.copy_known_classes(weights, names, own_classes, old)
            parts.append(weights)
        assert torch.equal(torch.cat(parts), expected)
    old.class_weights = None
    class_weights.copy_known_classes(weights, names, own_classes, old)
    assert torch.equal(weights, expected[2:])


def test_class_momentum_is_kept_once(eighty_images, tmp_path, monkeypatch):
    states, save = [], loop.save_state

    def watched(context, state, folder):
        states.append(state)
        save(context, state, folder)

    monkeypatch.setattr(loop, "save_state", watched)
    train(eighty_images, AUGMENTED.updated(epochs=1), tmp_path / "m")
    state = states[0]
    buffer = state.optimizer.state[state.class_weights]["momentum_buffer"]
    assert buffer.shape == state.class_weights.shape
    assert len(state.class_momentum) == 0


def test_all_ranks_get_the_first_one_s_running_means(four_classes, tmp_path):
    sent = []

    class Listening(Twins):
        def broadcast_from_first(self, tensor):
            sent.append(tensor.data_ptr())
            return tensor

    context = small_context(four_classes, SMALL.updated(sync_batch_norm=False), out=tmp_path)
    state = initial_state(context)
    share_buffers(replace(context, ranks=Listening()), state)
    buffers = {buffer.data_ptr() for buffer in state.network.buffers()}
    assert buffers
    assert buffers <= set(sent)


def test_a_checkpoint_restores_every_part_of_the_state(four_classes, tmp_path):
    context = small_context(four_classes, SMALL.updated(sample_rate=0.5), out=tmp_path)
    state = initial_state(context)
    state.network.train()
    draws = draw_epoch(context, state)
    step = TrainingStep(context, state)
    for batch in list(remaining_batches(context, draws, 0))[:2]:
        step.take(batch, draws.method_rng)
        state.step += 1
    state.generators = {"changes": batch.rng_state, "method": draws.method_rng.bit_generator.state}
    state.loss_scale, state.metrics = LossScale(4.0, 7), [{"epoch": 0, "lr": 0.1}]
    save_state(context, state, tmp_path)
    checkpoint = read_checkpoint(find_checkpoint(tmp_path), context.own_classes)
    restored = initial_state(context)
    restore_state(context, restored, checkpoint)
    for name, tensor in state.network.state_dict().items():
        assert torch.equal(tensor, restored.network.state_dict()[name])
    for name in ("class_weights", "class_momentum", "loss_sums"):
        assert torch.equal(getattr(state, name), getattr(restored, name))
    for name in ("epoch", "step", "generators", "loss_scale", "metrics"):
        assert getattr(state, name) == getattr(restored, name)
    for name, parameter in state.optimized_parameters().items():
        buffer = state.optimizer.state[parameter]["momentum_buffer"]
        other = restored.optimizer.state[restored.optimized_parameters()[name]]["momentum_buffer"]
        assert torch.equal(buffer, other)
    assert restored.steps_done(context) == 2


def test_other_ranks_share_the_sums_of_the_losses(four_classes, tmp_path):
    context = small_context(four_classes, SMALL, out=tmp_path)
    state = initial_state(context)
    save_state(context, state, tmp_path)
    checkpoint = read_checkpoint(find_checkpoint(tmp_path))
    checkpoint.tensors["sums"] = torch.tensor([[1.0, 2.0], [3.0, 6.0]])  # of two ranks
    restore_state(context, state, checkpoint)
    assert state.loss_sums.tolist() == [2.0, 4.0]
