"""Blended queries from one encoder: a head on the new network that predicts the old embedding.

    unibct benchmark --test glyphs:val --methods none,unibct-plus --chain none --out runs/val
    python measurements/one_encoder_blend.py runs/val --test glyphs:val
    python measurements/one_encoder_blend.py runs/val --data PHOTOS/train --test PHOTOS/val

For each finished cell of a method: the features before the network's last layer are mapped to the
old embeddings of the training images by ridge regression, whose strength is chosen on an eighth
of the training classes. Old rows are then searched with a blend of the new and the predicted old
query. Points of top-1 and TAR: the cross test minus the old self test, and the new self test minus
the free model's if the gallery is made with the same blend. The results are in docs/evaluation.md.
"""

import argparse
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from unibct.arrays import Floats, Ints, normalized
from unibct.benchmark.grid import make_grid
from unibct.benchmark.jobs import cell_folder, free_folder, old_folder
from unibct.benchmark.workspace import MODEL, Workspace
from unibct.data.image_set import ImageSet
from unibct.data.loader import read_pixels
from unibct.data.scenarios import SCENARIOS
from unibct.embeddings.extraction import NETWORK_BATCH, embed
from unibct.evaluation.blending import blended
from unibct.evaluation.metrics import measured_metrics
from unibct.evaluation.search_test import search_test
from unibct.models.model import Model

ALPHAS = (0.5, 0.75)
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # of the ridge, in mean variances of a feature
HELD_OUT = 8  # one class in so many chooses the strength


def main() -> None:
    """Print a line per scenario."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", default="glyphs:train")
    parser.add_argument("--test", required=True)
    parser.add_argument("--method", default="unibct-plus")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    workspace = Workspace(make_grid(options.data, test=options.test), options.folder)
    print(f"points of top-1 / {_names(workspace)[1]}; cross − old self, then new self − free self")
    for scenario in SCENARIOS:
        cell = cell_folder(scenario, options.method, options.seed)
        if (options.folder / cell / MODEL).is_dir():
            print(f"{scenario:15} {_line(workspace, scenario, cell, options.seed)}", flush=True)


def _line(workspace: Workspace, scenario: str, cell: str, seed: int) -> str:
    """Return the differences of one cell: the bare model, both encoders, and the head."""
    old_name, free_name = old_folder(scenario, seed), free_folder(scenario, seed)
    old, free, new = (workspace.vectors(name) for name in (old_name, free_name, cell))
    predicted = _predicted_old(workspace, scenario, cell, seed)
    old_self, free_self = (_measured(workspace, rows, rows) for rows in (old, free))

    def cross(queries: Floats) -> str:
        return _difference(_measured(workspace, queries, old), old_self)

    def own_gallery(rows: Floats) -> str:
        return _difference(_measured(workspace, rows, rows), free_self)

    parts = [f"new {cross(new)}, {own_gallery(new)}"]
    for alpha in ALPHAS:
        both, head = (blended(old=queries, new=new, alpha=alpha) for queries in (old, predicted))
        both_text, head_text = f"both encoders {cross(both)}", f"head {cross(head)}"
        parts.append(f"α {alpha}: {both_text}, {head_text}, {own_gallery(head)}")
    return " | ".join(parts)


def _predicted_old(workspace: Workspace, scenario: str, cell: str, seed: int) -> Floats:
    """Return (test images, dim) old embeddings as the new network's features predict them."""
    images = workspace.training_images(f"new:{scenario}", seed)
    targets = np.asarray(embed(workspace.model(old_folder(scenario, seed)), images).vectors)
    model = workspace.model(cell)
    features, test_features = (_features(model, i) for i in (images, workspace.test_images))
    classes = np.random.default_rng(0).permutation(np.unique(images.labels))
    held_out = np.isin(images.labels, classes[: len(classes) // HELD_OUT])

    def agreement(strength: float) -> float:
        guesses = _ridge(features[~held_out], targets[~held_out], strength, features[held_out])
        return float((guesses * targets[held_out]).sum(axis=1).mean())

    return _ridge(features, targets, max(STRENGTHS, key=agreement), test_features)


def _ridge(features: Floats, targets: Floats, strength: float, wanted: Floats) -> Floats:
    """Fit targets ≈ features·W + b, and return the normalised prediction for other features."""
    mean, target_mean = features.mean(axis=0), targets.mean(axis=0)
    centred = features - mean
    moments = centred.T @ centred
    moments[np.diag_indices_from(moments)] += strength * np.trace(moments) / len(moments)
    products = centred.T @ (targets - target_mean)
    weights = cast(Floats, np.linalg.solve(moments, products))
    return normalized((wanted - mean) @ weights + target_mean)


def _features(model: Model, images: ImageSet) -> Floats:
    """Return (images, features) what goes into the network's last linear layer."""
    last = [module for module in model.network.modules() if isinstance(module, nn.Linear)][-1]
    collected: list[Tensor] = []
    hook = last.register_forward_pre_hook(lambda _, inputs: collected.append(inputs[0].float()))
    order: Ints = np.arange(len(images))
    with torch.no_grad():
        for pixels in read_pixels(images, model.input.frame).batches(order, NETWORK_BATCH):
            model.raw_embeddings(pixels, flip_test=False)
    hook.remove()
    return torch.cat(collected).numpy()


def _names(workspace: Workspace) -> list[str]:
    """Return the names of the two metrics."""
    vectors = np.eye(len(workspace.test_images), dtype=np.float32)[:, :2] + 1
    metrics = measured_metrics(search_test(vectors, vectors, workspace.split), [workspace.far])
    return ["top-1", next(name for name in metrics if name.startswith("TAR"))]


def _measured(workspace: Workspace, queries: Floats, rows: Floats) -> list[float]:
    metrics = measured_metrics(search_test(queries, rows, workspace.split), [workspace.far])
    return [100 * metrics[name] for name in _names(workspace)]


def _difference(values: list[float], base: list[float]) -> str:
    return " / ".join(f"{value - other:+.1f}" for value, other in zip(values, base, strict=True))


if __name__ == "__main__":
    main()
