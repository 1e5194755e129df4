"""Tiny networks of other libraries."""

import json
from pathlib import Path

import numpy as np
import torch

from unibct.models.architectures import Architecture
from unibct.models.input import InputSpec
from unibct.models.model import Model
from unibct.models.model_folder import load_model, save_model

_TOKENS = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_TOKENS |= {"intermediate_size": 32, "image_size": 32, "patch_size": 8}
KINDS = ("vit", "dinov2", "siglip_vision_model", "clip_vision_model", "resnet")


def tiny_config(kind: str, **more):
    """A configuration of transformers, some thousand weights."""
    import transformers

    if kind == "resnet":
        values = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
        return transformers.ResNetConfig(**values, layer_type="basic")
    values = _TOKENS | more
    if kind.startswith("dinov2"):
        del values["intermediate_size"]
    return transformers.AutoConfig.for_model(kind, **values)


def saved_network(kind: str, folder: Path, **preprocessor) -> Path:
    """A folder as ``save_pretrained`` writes it, with random weights."""
    import transformers

    config = tiny_config(kind)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        network = transformers.AutoModel.from_config(config)
        # Some are zero at first, and then hide whether they were loaded.
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
    network.save_pretrained(folder)
    if preprocessor:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return folder


def require_stored(
    network: torch.nn.Module, architecture: Architecture, spec: InputSpec, dim: int, folder: Path
) -> None:
    """Require that a model folder holds all that a network needs to embed as before."""
    model = Model(network, architecture.name, spec, dim, architecture_config=architecture.config)
    save_model(model, folder)
    loaded = load_model(folder)
    assert loaded.fingerprint == model.fingerprint
    shape = (3, 40, 50) if spec.channels == 1 else (3, 40, 50, 3)
    images = np.random.default_rng(0).integers(0, 255, shape).astype(np.uint8)
    assert np.allclose(loaded.embed(images), model.embed(images), atol=1e-6)
