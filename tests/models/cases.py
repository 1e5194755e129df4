"""A small model with random weights."""

import torch

from unibct.models.architectures.table import build_network
from unibct.models.input import InputSpec
from unibct.models.model import Model


def small_model(seed=0, **changes) -> Model:
    spec = InputSpec(32, 32, 1)
    network = build_network("resnet-small", spec, 16, seed=seed).eval()
    options = {"class_names": ("a", "b"), "class_weights": torch.ones(2, 16)} | changes
    return Model(network, "resnet-small", spec, 16, **options)
