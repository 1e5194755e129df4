"""How far do maps go, and how far does compatible training? Cross tests with intervals.

    python measurements/maps.py                                    glyphs, some 5 minutes
    python measurements/maps.py --train T --test V --name photos --recipe R

Three models are trained on one scenario: the old one, a free one (trained without compatibility)
and a compatible one. Maps are fitted on the free and the old model's embeddings of the new training
set: backward (new queries into the old space) and forward (old rows into the new space). The test
classes are in neither training set. Each line has the top-1 of new queries in the gallery that
they search, and the difference to the old self test with its 95 % interval over classes.

Folders of a run that was stopped are used again. The results are in docs/maps.md.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unibct.data.readers import open_images
from unibct.data.scenarios import split
from unibct.embeddings.extraction import embed
from unibct.embeddings.mapping import fit_map
from unibct.embeddings.store import Embeddings
from unibct.evaluation.criterion import compare_tests
from unibct.evaluation.search_test import SearchTest, search_test
from unibct.evaluation.templates import GallerySplit, split_gallery
from unibct.maps import MAPS
from unibct.maps.space_map import BACKWARD, FORWARD
from unibct.training.plan import upgrade_recipes
from unibct.training.recipe import load_recipe
from unibct.training.train import train

METRIC = "top-1"


def embedded_sides(options: argparse.Namespace) -> dict[str, dict[str, Embeddings]]:
    """Train the three models, and return their embeddings of both sets by model and set."""
    images, test = open_images(options.train), open_images(options.test)
    sets = split(images.labels, options.scenario)
    old_images, new_images = images.select(sets.old), images.select(sets.new)
    recipe = load_recipe(options.recipe, options.set)
    old_recipe, new_recipe = upgrade_recipes(recipe, options.scenario, options.seed)
    root = Path(options.work) / f"{options.name}-{options.scenario}-{options.seed}"
    old = train(old_images, old_recipe, root / "old", resume=True)
    free = train(new_images, new_recipe, root / "free", resume=True)
    compatible = train(
        new_images, new_recipe, root / "compatible", old=old, method=options.method, resume=True
    )
    models = {"old": old, "free": free, "compatible": compatible}
    return {
        name: {"fit": embed(model, new_images), "test": embed(model, test)}
        for name, model in models.items()
    }


def tests(sides: dict[str, dict[str, Embeddings]]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, the queries and the rows of each test."""
    old, free, compatible = (sides[name]["test"] for name in ("old", "free", "compatible"))
    yield "old self test", old.vectors, old.vectors
    yield "free queries, old rows, no map", free.vectors, old.vectors
    for kind in MAPS:
        for direction in (BACKWARD, FORWARD):
            fitted = fit_map(
                sides["free"]["fit"], sides["old"]["fit"], direction=direction, kind=kind
            )
            queries, rows = free.vectors, old.vectors
            if direction == BACKWARD:
                queries = fitted.vector_map(queries)
            else:
                rows = fitted.vector_map(rows)
            yield f"{kind}, {direction}", queries, rows
    yield "compatible training", compatible.vectors, old.vectors
    yield "compatible, after a backfill", compatible.vectors, compatible.vectors
    yield "free, after a backfill", free.vectors, free.vectors


def line(name: str, test: SearchTest, old_self: SearchTest) -> str:
    """Return a row of the table."""
    criterion = next(c for c in compare_tests(old_self, test) if c.metric == METRIC)
    values = (criterion.difference, criterion.low, criterion.high)
    gain, low, high = (f"{100 * value:+.1f}" for value in values)
    return f"| {name} | {100 * criterion.cross:.1f} | {gain} ({low} to {high}) |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", default="glyphs:train")
    parser.add_argument("--test", default="glyphs:test")
    parser.add_argument("--name", default="glyphs", help="for the folders in --work")
    parser.add_argument("--recipe", default="glyphs")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--scenario", default="open-class")
    parser.add_argument("--method", default="unibct-plus")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", default="runs/maps")
    options = parser.parse_args()
    sides = embedded_sides(options)
    labels = sides["old"]["test"].labels
    chosen: GallerySplit = split_gallery(labels, seed=options.seed)
    print(f"{options.name}, {options.scenario}, seed {options.seed}")
    print(f"| new queries in | {METRIC} | − old self test |\n| --- | --- | --- |")
    old_self: SearchTest | None = None
    for name, queries, rows in tests(sides):
        test = search_test(queries, rows, chosen)
        old_self = old_self or test
        print(line(name, test, old_self), flush=True)


if __name__ == "__main__":
    main()
