"""Tiny networks of other libraries."""

import json
from pathlib import Path

import torch

_TOKENS = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 8,
}
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
