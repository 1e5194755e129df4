"""What runs leave behind, read and compared."""

import csv

import torch

from unibct.models.model_folder import load_model
from unibct.training.run_folder import find_checkpoint, read_checkpoint


def metrics(folder):
    """The rows of metrics.csv."""
    return list(csv.DictReader((folder / "metrics.csv").open()))


def last_checkpoint(folder):
    """All that the last checkpoint holds, but the times."""
    checkpoint = read_checkpoint(find_checkpoint(folder))
    for row in checkpoint.state["metrics"]:
        del row["seconds"], row["images_per_second"]
    return checkpoint


def require_same(first, second):
    """Two runs have the same last checkpoint and the same model, to the bit."""
    one, other = last_checkpoint(first), last_checkpoint(second)
    assert one.state == other.state
    for ours, theirs in ((one.tensors, other.tensors), (one.class_tensors, other.class_tensors)):
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            assert torch.equal(tensor, theirs[name]), name
    assert load_model(first).fingerprint == load_model(second).fingerprint
