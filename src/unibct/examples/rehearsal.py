"""A rehearsal of the paper's runs on miniature sets: RecordIO, training, templates, tables.

Everything but the size is as in the real runs: the recipes, the file layouts, the commands' code.
"""

from collections.abc import Sequence
from pathlib import Path

from unibct.data.readers.table import open_images
from unibct.data.scenarios import SCENARIOS, find_scenario
from unibct.data.split_lists import write_split
from unibct.evaluation.protocols.ijb.compare import compare_on_ijb
from unibct.evaluation.protocols.ijb.protocol import IjbEvaluation
from unibct.examples.miniatures import make_ijbc, make_ms1mv3
from unibct.progress import Progress, Silent
from unibct.training.recipe import load_recipe
from unibct.training.train import train

METHOD = "unibct"
# What makes a miniature of a recipe: two epochs of warm-up and refinement, small batches.
SMALL = ("epochs=3", "warmup_epochs=1", "milestones=[2]", "refresh_epochs=[2]", "batch_size=32")
IDENTITIES = 100
SUBJECTS = 60


def recipe_name(scenario: str) -> str:
    """The shipped recipe of a scenario."""
    return f"ms1mv3-{scenario}"


def rehearse(
    out: Path,
    scenarios: Sequence[str] = tuple(SCENARIOS),
    *,
    overrides: Sequence[str] = (),
    identities: int = IDENTITIES,
    subjects: int = SUBJECTS,
    device: str = "auto",
    progress: Progress | None = None,
) -> dict[str, IjbEvaluation]:
    """Make the sets, then split, train and evaluate each scenario by its recipe.

    Args:
        out: the sets, splits and models; what is there already is taken up.
        scenarios: names from ``SCENARIOS``.
        overrides: ``key=value`` changes of the recipes, after those that make them small.
        identities: of the miniature MS1Mv3.
        subjects: of the miniature IJB-C.
        device: ``auto``, ``cpu``, ``cuda``, …
        progress: told of each image.
    """
    progress = progress or Silent()
    for scenario in scenarios:
        find_scenario(scenario)
    settings = [*SMALL, *overrides]
    # In identical-data the recipe is the new model's, which has a larger network.
    old_recipe = load_recipe(recipe_name("extended-data"), settings)
    new_recipes = {name: load_recipe(recipe_name(name), settings) for name in scenarios}
    faces, ijbc = out / f"ms1mv3-{identities}", out / f"ijbc-{subjects}"
    if not faces.is_dir():
        make_ms1mv3(faces, identities=identities, images_each=6)
    if not ijbc.is_dir():
        make_ijbc(ijbc, subjects=subjects)
    images = open_images(faces)
    results: dict[str, IjbEvaluation] = {}
    for scenario in scenarios:
        lists = out / scenario / "split"
        if not lists.is_dir():
            write_split(images, scenario, lists)
        old_set, new_set = (open_images(faces, lists / f"{name}.txt") for name in ("old", "new"))
        old_folder = out / f"old-{SCENARIOS[scenario].sample}"
        old = train(
            old_set,
            old_recipe,
            old_folder,
            resume=True,
            device=device,
            label=f"{scenario}: the old model",
            progress=progress,
        )
        train(
            new_set,
            new_recipes[scenario],
            out / scenario / "new",
            old=old,
            method=METHOD,
            resume=True,
            device=device,
            label=f"{scenario}: the new model",
            progress=progress,
        )
        results[scenario] = compare_on_ijb(
            ijbc,
            out / scenario / "new",
            old_folder,
            cache=out / "cache",
            device=device,
            progress=progress,
        )
    return results
