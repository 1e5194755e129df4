"""A model embeds in full float32, and the user's own setting is as it was afterwards."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.models.cases import small_model
from unibct.models.full_precision import full_float32

BACKENDS = torch.backends
SETTINGS = (BACKENDS.cuda.matmul, BACKENDS.cudnn.conv, BACKENDS.cudnn.rnn, BACKENDS.mkldnn.conv)
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 1), dtype=np.uint8)


def precisions():
    return [setting.fp32_precision for setting in SETTINGS]


@pytest.fixture
def tf32():
    """A user's program that allows TF32 for matrix products; torch allows it for convolutions."""
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield precisions()
    torch.set_float32_matmul_precision(precision)


class Watching(nn.Module):
    """A network that remembers the precision in which it ran."""

    def __init__(self, network):
        super().__init__()
        self.network, self.seen = network, []

    def forward(self, images):
        self.seen.append(precisions())
        return self.network(images)


def test_both_ways_to_embed_run_in_full_float32(tf32):
    watching = Watching(small_model().network)
    model = replace(small_model(), network=watching)
    model.embed(IMAGES)
    model.raw_embeddings(IMAGES)
    assert watching.seen == [["ieee"] * 4] * 3
    assert "tf32" in tf32
    assert precisions() == tf32
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cuda.matmul.allow_tf32  # the older name of the setting agrees


def test_an_error_leaves_the_setting_as_it_was(tf32):
    model = replace(small_model(), network=nn.Conv2d(3, 1, 1))  # takes other images
    with pytest.raises(RuntimeError):
        model.embed(IMAGES)
    assert precisions() == tf32


def test_blocks_of_several_threads_overlap(tf32):
    inside, leave, found = threading.Event(), threading.Event(), []

    def outer():
        with full_float32():
            inside.set()
            leave.wait(10)
            found.append(precisions())

    thread = threading.Thread(target=outer)
    thread.start()
    inside.wait(10)
    with full_float32():
        found.append(precisions())
    found.append(precisions())  # the other block is still open
    leave.set()
    thread.join()
    assert found == [["ieee"] * 4] * 3
    assert precisions() == tf32
