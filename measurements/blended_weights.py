"""Blended weights: a network between the old model and a new one that started from it.

    unibct benchmark --test glyphs:val --methods none,unibct-plus --chain none --out runs/val
    python measurements/blended_weights.py runs/val --test glyphs:test --choose glyphs:val
    python measurements/blended_weights.py runs/val --test glyphs:final --alpha 0.5
    python measurements/blended_weights.py runs/photos --test PHOTOS/test --choose PHOTOS/val

For each scenario, over the seeds of a benchmark: the cross test minus the old self test with new
weights and with blended ones, the difference of the two, and what the new model's self test loses.
Beside them, the same share in blended queries, which need both encoders. Points with 95 % intervals
over classes and seeds. The results are in docs/evaluation.md.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from unibct.arrays import Floats
from unibct.benchmark.jobs import cell_folder, old_folder
from unibct.benchmark.results import Measured
from unibct.benchmark.workspace import MODEL
from unibct.data.image_set import ImageSet
from unibct.data.readers import open_images
from unibct.data.scenarios import SCENARIOS
from unibct.embeddings.extraction import embed
from unibct.evaluation.blending import MIDPOINT, blended_test
from unibct.evaluation.bootstrap import class_draws
from unibct.evaluation.metrics import measured_metrics, sampled_metrics
from unibct.evaluation.search_test import SearchTest, search_test
from unibct.evaluation.templates import split_gallery
from unibct.evaluation.verification import headline_far, tar_name
from unibct.evaluation.weight_choice import choose_weights
from unibct.models.blended_weights import blend_weights
from unibct.models.model import Model
from unibct.models.model_folder import load_model

Tests = dict[str, SearchTest]
ROWS = {
    "new weights, cross − old self": ("cross", "old self"),
    "blended weights, cross − old self": ("blended cross", "old self"),
    "blended queries, cross − old self": ("blended queries", "old self"),
    "cross, blended − new weights": ("blended cross", "cross"),
    "new self, blended − new weights": ("blended self", "new self"),
}


def main() -> None:
    """Print a table per metric."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--test", required=True)
    parser.add_argument("--choose", help="images on which each seed chooses its share")
    parser.add_argument("--alpha", type=float, default=MIDPOINT)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    options = parser.parse_args()
    images = open_images(options.test)
    choice = None if options.choose is None else open_images(options.choose)
    far = headline_far(split_gallery(images.labels).compared_classes)
    metrics = ("top-1", tar_name(far))
    cells: dict[tuple[str, str, str], str] = {}
    for scenario in SCENARIOS:
        alphas: list[float] = []
        tests: list[Tests] = []
        for seed in options.seeds:
            old, new = (
                load_model(options.folder / name / MODEL)
                for name in (old_folder(scenario, seed), cell_folder(scenario, "unibct-plus", seed))
            )
            alphas.append(
                options.alpha if choice is None else choose_weights(choice, old=old, new=new).alpha
            )
            tests.append(_tests(old, new, alphas[-1], images))
        print(f"{scenario}: α {', '.join(f'{alpha:g}' for alpha in alphas)}", flush=True)
        measured = {name: _measured([one[name] for one in tests], far) for name in tests[0]}
        for metric in metrics:
            for row, (name, other) in ROWS.items():
                difference = measured[name][metric] - measured[other][metric]
                cells[metric, row, scenario] = _text(difference)
    for metric in metrics:
        print(f"\n| {metric} | {' | '.join(SCENARIOS)} |\n|{' --- |' * (1 + len(SCENARIOS))}")
        for row in ROWS:
            texts = [cells[metric, row, scenario] for scenario in SCENARIOS]
            print(f"| {row} | {' | '.join(texts)} |")


def _tests(old: Model, new: Model, alpha: float, images: ImageSet) -> Tests:
    """Return the searches of one cell."""
    split = split_gallery(images.labels)

    def rows(model: Model) -> Floats:
        return np.asarray(embed(model, images).vectors)

    old_rows, new_rows, between = rows(old), rows(new), rows(blend_weights(old, new, alpha))
    old_self = search_test(old_rows, old_rows, split)
    cross = search_test(new_rows, old_rows, split)
    return {
        "old self": old_self,
        "cross": cross,
        "blended cross": search_test(between, old_rows, split),
        "blended queries": blended_test(old_self, cross, alpha),
        "new self": search_test(new_rows, new_rows, split),
        "blended self": search_test(between, between, split),
    }


def _measured(tests: list[SearchTest], far: float) -> dict[str, Measured]:
    """Return each metric over the seeds."""
    values = [measured_metrics(test, [far]) for test in tests]
    samples: list[Any] = [sampled_metrics(test, class_draws(test), far) for test in tests]
    return {
        metric: Measured(
            np.array([one[metric] for one in values]),
            np.stack([one[metric] for one in samples]).astype(np.float64),
            class_draws(tests[0], repeats=1).drawn,
        )
        for metric in samples[0]
    }


def _text(difference: Measured) -> str:
    """Return points with their interval."""
    points = difference.estimate
    mean, low, high = (100 * value for value in (points.mean, points.low, points.high))
    return f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"


if __name__ == "__main__":
    main()
