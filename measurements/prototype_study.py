"""When does structural refinement help? Prototypes and cross tests with wrong labels.

    python measurements/prototype_study.py --seeds 0 1 2          about 50 minutes on two cores
    python measurements/prototype_study.py --seeds 0 1 2 --draw   the figure and the tables again

Open-class on the embedded images. A share of the new set's labels is replaced by wrong ones: by
any other class (uniform), or by one of the three classes with the nearest old centroids
(look-alike). Two things are measured:

- on the training images, the cosine between a prototype and the clean class centre (the mean of
  the old embeddings of all images that truly belong to the class), for each kind of prototype, τ,
  λ, number of images per class, and graph (of the new model after its warm-up or at its end, or of
  the old model);
- on the validation classes, the cross test of models that were trained with the wrong labels.

A run that was stopped continues where it was. The results are in docs/prototypes.md.
"""

import argparse
import json
import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from unibct.data.image_set import ImageSet
from unibct.data.readers import open_images
from unibct.data.scenarios import DEFAULT_SEED, sample_images, split
from unibct.distributed.cpus import usable_cpus
from unibct.embeddings.extraction import embed
from unibct.evaluation.search_test import search_test
from unibct.evaluation.templates import split_gallery
from unibct.evaluation.verification import headline_far
from unibct.files import write_json
from unibct.models.architectures import build_network
from unibct.models.model import Model
from unibct.prototypes.class_prototypes import class_prototypes
from unibct.training.network import recipe_input
from unibct.training.plan import plan_run, upgrade_recipes
from unibct.training.recipe import load_recipe
from unibct.training.run_folder import read_checkpoint
from unibct.training.train import train

SCENARIO = "open-class"
RATES = (0.0, 0.1, 0.2, 0.4)
NOISES = ("uniform", "look-alike")
METHODS: dict[str, tuple[str, dict[str, float]]] = {  # name: method, changes to the recipe
    "unibct-centroid": ("unibct-centroid", {}),
    "unibct-drop": ("unibct-drop", {}),
    "unibct": ("unibct", {}),
    "unibct, τ = 0.1": ("unibct", {"tau": 0.1}),
    "unibct-plus": ("unibct-plus", {}),
    "unibct-plus without own": ("unibct-plus@own=false", {}),
}
TAUS = (0.02, 0.05, 0.1, 0.2)
LAMS = (0.5, 0.9, 0.99)
SIZES = (5, 10, 24)
LOOK_ALIKES = 3
GALLERY_DRAWS = 8  # the cross test is averaged over this many choices of template images


def main() -> None:
    """Run the tasks that are not finished, then draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/prototypes"))
    parser.add_argument("--workers", type=int, default=usable_cpus())
    parser.add_argument("--draw", action="store_true", help="only draw what is finished")
    parser.add_argument("--figure", type=Path, default=Path("docs/images/prototypes.svg"))
    arguments = parser.parse_args()
    tasks = [
        (arguments.out, seed, noise, rate)
        for seed in arguments.seeds
        for rate in RATES
        for noise in (NOISES if rate else NOISES[:1])
    ]
    if not arguments.draw:
        os.environ["OMP_NUM_THREADS"] = "1"
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(arguments.workers, mp_context=context) as pool:
            list(pool.map(train_old, [arguments.out] * len(arguments.seeds), arguments.seeds))
            for task, _ in zip(tasks, pool.map(run, *zip(*tasks, strict=True)), strict=True):
                print(*task[1:], "finished", flush=True)
    results = [result for task in tasks if (result := finished(*task)) is not None]
    if not results:
        raise SystemExit(f"{arguments.out} holds no finished result; run without --draw first")
    draw(results, arguments.figure)
    print_tables(results)


def result_file(out: Path, seed: int, noise: str, rate: float) -> Path:
    """Return the path of a task's result."""
    return out / f"{noise}-{rate:.0%}-seed{seed}.json"


def settings(seed: int) -> dict[str, Any]:
    """Return the settings that a result depends on."""
    _, recipe = upgrade_recipes(load_recipe("glyphs"), SCENARIO, seed)
    return {
        "recipe": recipe.model_dump(mode="json"),
        "methods": {name: list(choice) for name, choice in METHODS.items()},
        "grid": [list(TAUS), list(LAMS), list(SIZES), LOOK_ALIKES, GALLERY_DRAWS],
    }


def finished(out: Path, seed: int, noise: str, rate: float) -> dict[str, Any] | None:
    """Return a task's result, or None if there is none; refuse one with other settings."""
    path = result_file(out, seed, noise, rate)
    if not path.is_file():
        return None
    result = json.loads(path.read_text())
    if result["settings"] != settings(seed):
        raise SystemExit(f"{path} comes from other settings; choose another --out or remove it")
    return result


def train_old(out: Path, seed: int) -> Model:
    """Train the old model of a seed, without wrong labels, or load it."""
    torch.set_num_threads(1)
    images = open_images("glyphs:train")
    parts = split(images.labels, SCENARIO, seed=DEFAULT_SEED + seed)
    recipe, _ = upgrade_recipes(load_recipe("glyphs"), SCENARIO, seed)
    return train(
        images.select(parts.old), recipe, out / f"old-seed{seed}", resume=True, validation=0
    )


def run(out: Path, seed: int, noise: str, rate: float) -> None:
    """Measure every kind of prototype, and the cross test of each method, for wrong labels."""
    torch.set_num_threads(1)
    if finished(out, seed, noise, rate) is not None:
        return
    path = result_file(out, seed, noise, rate)
    images, test = open_images("glyphs:train"), open_images("glyphs:val")
    parts = split(images.labels, SCENARIO, seed=DEFAULT_SEED + seed)
    _, recipe = upgrade_recipes(load_recipe("glyphs"), SCENARIO, seed)
    clean = images.select(parts.new)
    folder = path.with_suffix("")
    old = train_old(out, seed)
    old_vectors = np.asarray(embed(old, clean).vectors)
    noisy = replace(clean, labels=with_wrong_labels(clean.labels, old_vectors, noise, rate, seed))
    cache = folder / "cache"
    free = train(noisy, recipe, folder / "free", resume=True, validation=0, cache=cache)
    graphs = {
        "late": np.asarray(embed(free, clean).vectors),
        "early": np.asarray(embed(after_warmup(noisy, recipe, cache), clean).vectors),
        "old": old_vectors,
    }
    quality = list(qualities(old_vectors, clean.labels, noisy.labels, graphs, seed))
    old_test = embed(old, test).vectors
    cross = {"old": metrics(old_test, old_test, test)}
    for number, (name, (method, changes)) in enumerate(METHODS.items()):
        model = train(
            noisy,
            recipe.updated(**changes),
            folder / f"model{number}",
            old=old,
            method=method,
            resume=True,
            validation=0,
            cache=cache,
        )
        vectors = embed(model, test).vectors
        cross[name] = metrics(vectors, old_test, test)
        cross[f"{name} self"] = metrics(vectors, vectors, test)
    result = {"seed": seed, "noise": noise, "rate": rate, "quality": quality, "cross": cross}
    write_json(path, result | {"settings": settings(seed)})


def with_wrong_labels(
    labels: NDArray[np.int64], old: NDArray[np.float32], noise: str, rate: float, seed: int
) -> NDArray[np.int64]:
    """Return labels of which exactly the share ``rate``, drawn at random, is wrong."""
    rng = np.random.default_rng([seed, 7])
    chosen = rng.permutation(len(labels))[: round(rate * len(labels))]
    classes = int(labels.max()) + 1
    wrong = labels.copy()
    if noise == "uniform":
        wrong[chosen] = (labels[chosen] + rng.integers(1, classes, len(chosen))) % classes
    else:
        centres = class_prototypes(labels, old=old, kind="centroid")
        cosine = centres @ centres.T
        np.fill_diagonal(cosine, -np.inf)
        nearest = np.argsort(-cosine, axis=1)[:, :LOOK_ALIKES]
        wrong[chosen] = nearest[labels[chosen], rng.integers(0, LOOK_ALIKES, len(chosen))]
    return wrong


def after_warmup(images: ImageSet, recipe: Any, cache: Path) -> Model:
    """Return the new model at the end of the warm-up, from the cache that the runs share."""
    run = plan_run(images, recipe)
    architecture = run.recipe.architecture
    state = next(cache.glob("warmup-*/checkpoint-*"))
    tensors = read_checkpoint(state).tensors
    spec = recipe_input(run.recipe)
    dim = cast(int, run.recipe.dim)
    network = build_network(architecture, spec, dim)
    prefix = "network."
    network.load_state_dict(
        {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    )
    return Model(network.eval(), architecture, spec, dim)


def qualities(
    old: NDArray[np.float32],
    truth: NDArray[np.int64],
    labels: NDArray[np.int64],
    graphs: dict[str, NDArray[np.float32]],
    seed: int,
) -> Iterable[dict[str, Any]]:
    """Yield the mean cosine between prototypes and clean class centres, for every setting."""
    centres = class_prototypes(truth, old=old, kind="centroid")
    for size in SIZES:
        quota = np.minimum(np.bincount(labels), size)
        rows = np.flatnonzero(sample_images(labels, quota, np.random.default_rng([seed, 8])))

        def cosine(
            graph: NDArray[np.float32] | None = None,
            *,
            kind: str,
            rows: NDArray[np.int64] = rows,
            tau: float = 0.05,
            lam: float = 0.9,
        ) -> float:
            new = None if graph is None else graph[rows]
            prototypes = class_prototypes(
                labels[rows], old=old[rows], new=new, kind=kind, tau=tau, lam=lam
            )
            return float((prototypes * centres).sum(axis=1).mean())

        yield {"kind": "centroid", "size": size, "cosine": cosine(kind="centroid")}
        yield {"kind": "drop", "size": size, "cosine": cosine(kind="drop")}
        for name, graph in graphs.items():
            for tau in TAUS:
                for lam in LAMS:
                    value = cosine(graph, kind="structural", tau=tau, lam=lam)
                    yield {
                        "kind": "structural",
                        "graph": name,
                        "tau": tau,
                        "lam": lam,
                        "size": size,
                        "cosine": value,
                    }


def metrics(query: Any, gallery: Any, test: ImageSet) -> dict[str, float]:
    """Return TAR and top-1, averaged over several choices of template images."""
    far = headline_far(len(test.class_names))
    tests = [
        search_test(query, gallery, split_gallery(test.labels, seed=seed))
        for seed in range(GALLERY_DRAWS)
    ]
    return {
        f"TAR@{far:g}": float(np.mean([test.tar(far) for test in tests])),
        "top-1": float(np.mean([test.top(1) for test in tests])),
    }


def quality_of(
    results: list[dict[str, Any]], noise: str, rate: float, **wanted: Any
) -> list[float]:
    """Return the cosines of one setting, one for each seed."""
    return [
        entry["cosine"]
        for result in results
        if result["rate"] == rate and (result["noise"] == noise or rate == 0)
        for entry in result["quality"]
        if all(entry.get(key) == value for key, value in wanted.items())
    ]


def cross_of(
    results: list[dict[str, Any]], noise: str, rate: float, method: str, metric: str
) -> list[float]:
    """Return cross − old self in points, one value for each seed."""
    return [
        100 * (result["cross"][method][metric] - result["cross"]["old"][metric])
        for result in results
        if result["rate"] == rate and (result["noise"] == noise or rate == 0)
    ]


SHOWN: dict[str, dict[str, Any]] = {
    "mean": {"kind": "centroid"},
    "drop": {"kind": "drop"},
    "structural, τ = 0.05": {"kind": "structural", "tau": 0.05, "lam": 0.9, "graph": "early"},
    "structural, τ = 0.1": {"kind": "structural", "tau": 0.1, "lam": 0.9, "graph": "early"},
    "structural, τ = 0.2": {"kind": "structural", "tau": 0.2, "lam": 0.9, "graph": "early"},
    "τ = 0.1, graph late": {"kind": "structural", "tau": 0.1, "lam": 0.9, "graph": "late"},
    "τ = 0.1, graph old": {"kind": "structural", "tau": 0.1, "lam": 0.9, "graph": "old"},
}


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Draw the quality of the prototypes and the cross tests over the share of wrong labels."""
    figure = Figure(figsize=(12, 7), layout="constrained")
    panels = cast(NDArray[Any], figure.subplots(2, 3))
    percents = [100 * rate for rate in RATES]

    def finish(axes: Axes, title: str, y: str) -> None:
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("wrong labels, %")
        axes.set_ylabel(y)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=7)

    for row, noise in enumerate(NOISES):
        axes = panels[row, 0]
        for name, wanted in SHOWN.items():
            values = [quality_of(results, noise, rate, size=SIZES[-1], **wanted) for rate in RATES]
            axes.plot(percents, [np.mean(v) for v in values], marker=".", label=name)
        finish(axes, f"{noise}: prototype and clean centre", "cosine")
        axes = panels[row, 1]
        for size in SIZES:
            for name in ("mean", "structural, τ = 0.1"):
                values = [
                    quality_of(results, noise, rate, size=size, **SHOWN[name]) for rate in RATES
                ]
                style = "--" if name == "mean" else "-"
                label = f"{name}, {size} images"
                axes.plot(percents, [np.mean(v) for v in values], style, marker=".", label=label)
        finish(axes, f"{noise}: images per class", "cosine")
        axes = panels[row, 2]
        for method in METHODS:
            values = [cross_of(results, noise, rate, method, "top-1") for rate in RATES]
            low, high = ([f(v) for v in values] for f in (np.min, np.max))
            axes.plot(percents, [np.mean(v) for v in values], marker=".", label=method)
            axes.fill_between(percents, low, high, alpha=0.15)
        axes.axhline(0, color="grey", lw=1)
        finish(axes, f"{noise}: cross − old self", "points of top-1")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def print_tables(results: list[dict[str, Any]]) -> None:
    """Print the same numbers as Markdown tables."""
    columns = [(noise, rate) for noise in NOISES for rate in RATES if rate or noise == NOISES[0]]
    heads = " | ".join(f"{noise} {rate:.0%}" if rate else "clean" for noise, rate in columns)
    rule = "|" + " --- |" * (len(columns) + 1)

    def quality_row(name: str, size: int, **wanted: Any) -> None:
        cells = [np.mean(quality_of(results, *c, size=size, **wanted)) for c in columns]
        print(f"| {name} | " + " | ".join(f"{value:.4f}" for value in cells) + " |")

    print(f"\n| cosine to the clean centre, {SIZES[-1]} images | {heads} |\n{rule}")
    for name, wanted in SHOWN.items():
        quality_row(name, SIZES[-1], **wanted)
    for lam in LAMS:
        quality_row(f"τ = 0.1, λ = {lam}", SIZES[-1], **SHOWN["structural, τ = 0.1"] | {"lam": lam})
    for size in SIZES[:-1]:
        for name in ("mean", "drop", "structural, τ = 0.1"):
            quality_row(f"{name}, {size} images", size, **SHOWN[name])
    for metric in results[0]["cross"]["old"]:
        for title, suffix in (("cross", ""), ("new self", " self")):
            print(f"\n| {title} − old self, {metric}, points (each seed) | {heads} |\n{rule}")
            for method in METHODS:
                differences = [cross_of(results, *c, method + suffix, metric) for c in columns]
                cells = [
                    f"{np.mean(values):+.2f} ({', '.join(f'{value:+.1f}' for value in values)})"
                    for values in differences
                ]
                print(f"| {method} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
