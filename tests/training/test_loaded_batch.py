import numpy as np
import torch

from tests.training.host_waits import META
from unibct.training.loaded_batch import LoadedBatch, copied_ahead


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
