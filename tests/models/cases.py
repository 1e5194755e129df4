"""Small models with random weights."""

from dataclasses import replace

import torch

from unibct.models.architectures import build_network
from unibct.models.input import InputSpec
from unibct.models.model import Model


def small_model(seed=0, **changes) -> Model:
    spec = InputSpec(32, 32, 1)
    network = build_network("resnet-small", spec, 16, seed=seed).eval()
    options = {"class_names": ("a", "b"), "class_weights": torch.ones(2, 16)} | changes
    return Model(network, "resnet-small", spec, 16, **options)


def trained_from(old: Model, architecture="resnet-small", **training) -> Model:
    """Return a model with other weights that says it was trained from the old one's."""
    network = build_network(architecture, old.input, old.dim, seed=1).eval()
    recipe = {"warm_start": True, "seed": 5}
    return replace(
        old,
        network=network,
        architecture=architecture,
        old_fingerprint=old.fingerprint,
        training={"recipe": recipe, "score_scale": 1.2} | training,
    )
