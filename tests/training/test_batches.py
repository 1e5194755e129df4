import numpy as np
import pytest
import torch

from tests.training.host_waits import META
from tests.training.runs import AUGMENTED, small_context
from unibct.distributed.ranks import Ranks
from unibct.training.batches import LoadedBatch, copied_ahead, draw_epoch, remaining_batches
from unibct.training.state import initial_state


def batch(number):
    rows = torch.full((2,), number)
    pixels = torch.zeros(2, 4, 4, 1, dtype=torch.uint8)
    whole = np.array([number, number])
    return LoadedBatch(pixels, rows, rows, None, None, None, whole, {"after": number})


def test_batches_keep_their_order_and_go_to_the_device_one_ahead():
    loaded = []

    def batches():
        for number in range(4):
            loaded.append(number)
            yield batch(number)

    for number, copied in enumerate(copied_ahead(batches(), META)):
        assert copied.rng_state == {"after": number}
        assert copied.whole_batch.tolist() == [number, number]
        assert {t.device for t in (copied.pixels, copied.rows, copied.labels)} == {META}
        assert copied.flipped is None
        assert loaded == list(range(min(number + 2, 4)))
    assert number == 3


def test_nothing_is_copied_on_a_cpu():
    first = batch(0)
    assert next(copied_ahead(iter([first]), torch.device("cpu"))) is first


def test_map_changes_every_tensor_and_nothing_else():
    doubled = batch(3).map(lambda tensor: tensor * 2)
    assert doubled.rows.tolist() == doubled.labels.tolist() == [6, 6]
    assert doubled.whole_batch.tolist() == [3, 3]
    assert doubled.old is None


RECIPE = AUGMENTED.updated(batch_size=8)


def batches_of(context, state):
    return list(remaining_batches(context, draw_epoch(context, state), state.step))


def require_same_batches(batches, expected):
    assert len(batches) == len(expected)
    for one, other in zip(batches, expected, strict=True):
        assert np.array_equal(one.rows, other.rows)
        assert np.array_equal(one.pixels, other.pixels)
        assert np.array_equal(one.flipped, other.flipped)
        assert one.rng_state == other.rng_state


def test_an_epoch_shows_every_image_once_in_an_order_of_its_own(four_classes):
    context = small_context(four_classes, RECIPE)
    state = initial_state(context)
    first = batches_of(context, state)
    rows = np.concatenate([batch.rows for batch in first])
    assert sorted(rows.tolist()) == list(range(24))
    read_ahead = small_context(four_classes, RECIPE, workers=2)
    require_same_batches(batches_of(read_ahead, state), first)
    state.epoch = 1
    assert not np.array_equal(np.concatenate([b.rows for b in batches_of(context, state)]), rows)


@pytest.mark.parametrize("step", [1, 2])
def test_the_middle_of_an_epoch_continues_with_the_same_changes(step, four_classes):
    context = small_context(four_classes, RECIPE)
    state = initial_state(context)
    draws = draw_epoch(context, state)
    whole = list(remaining_batches(context, draws, 0))
    method_rng_state = draws.method_rng.bit_generator.state
    state.step = step
    state.generators = {"changes": whole[step - 1].rng_state, "method": method_rng_state}
    require_same_batches(batches_of(context, state), whole[step:])


@pytest.mark.parametrize("augment", [None, "python:tests.training.test_network:salted"])
def test_ranks_share_a_batch_and_its_changes(four_classes, augment):
    recipe = RECIPE.updated(augment=augment)
    state = initial_state(small_context(four_classes, recipe))
    whole = batches_of(small_context(four_classes, recipe), state)
    parts = [
        batches_of(small_context(four_classes, recipe, ranks=Ranks(rank, 2)), state)
        for rank in range(2)
    ]
    for batch, *own in zip(whole, *parts, strict=True):
        assert np.array_equal(np.concatenate([part.pixels for part in own]), batch.pixels)
        assert np.array_equal(np.concatenate([part.rows for part in own]), batch.rows)
        assert all(np.array_equal(part.whole_batch, batch.rows) for part in own)
