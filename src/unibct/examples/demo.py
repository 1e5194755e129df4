"""The demo: old, new and free model on the embedded images, from nothing to a verdict."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unibct.data.image_set import ImageSet
from unibct.data.readers.table import open_images
from unibct.data.scenarios import DEFAULT_SEED, find_scenario, split
from unibct.embeddings.extraction import embed_images
from unibct.evaluation.upgrade import UpgradeEvaluation, evaluate_upgrade
from unibct.methods import DEFAULT_METHOD, NO_METHOD, find_method
from unibct.models.model import Model
from unibct.progress import Progress, Silent
from unibct.training.plan import plan_run, upgrade_recipes
from unibct.training.recipe import Recipe, load_recipe
from unibct.training.train import train


@dataclass(frozen=True)
class DemoPlan:
    """Which images each model learns from, and by which recipe."""

    scenario: str
    method: str
    old_images: ImageSet
    new_images: ImageSet
    test_images: ImageSet
    old_recipe: Recipe
    new_recipe: Recipe

    @property
    def work(self) -> float:
        """Images through training, in all; an evaluated image counts a third."""
        old = self.old_recipe.epochs * len(self.old_images)
        new = self.new_recipe.epochs * len(self.new_images)
        return old + 2 * new + len(self.new_images) / 3 + len(self.test_images)


@dataclass(frozen=True)
class DemoResult:
    """What the demo found."""

    plan: DemoPlan
    models: dict[str, Model]
    evaluation: UpgradeEvaluation


def plan_demo(
    scenario: str = "extended-data",
    method: str = DEFAULT_METHOD,
    seed: int = 0,
    *,
    part: str = "test",
    overrides: Sequence[str] = (),
) -> DemoPlan:
    """Settle the demo; a bad name is refused before any work.

    Args:
        scenario: a name from ``SCENARIOS``.
        method: a name from ``METHODS``.
        seed: chooses the split (666 + seed) and the weights.
        part: of the embedded set that is searched; ``val`` to choose recipes, ``test`` to report.
        overrides: ``key=value`` changes of the recipe.
    """
    find_scenario(scenario)
    entry = find_method(method)
    images = open_images("glyphs:train")
    sets = split(images.labels, scenario, seed=DEFAULT_SEED + seed)
    old_images, new_images = images.select(sets.old), images.select(sets.new)
    entry.check_classes(old_images.class_names, new_images.class_names)
    recipe = load_recipe("glyphs", overrides)
    old_recipe, new_recipe = upgrade_recipes(recipe, scenario, seed)
    return DemoPlan(
        scenario,
        method,
        old_images,
        new_images,
        open_images(f"glyphs:{part}"),
        old_recipe,
        new_recipe,
    )


def run_demo(
    plan: DemoPlan,
    out: Path,
    *,
    fresh: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
) -> DemoResult:
    """Train the three models (or take up those an earlier run left), and evaluate them.

    Args:
        plan: what to do.
        out: models go to ``out/models``, each in a folder named after its run.
        fresh: train anew even if a finished model of the same run is there.
        device: ``auto``, ``cpu``, ``cuda``, …
        progress: told of each image.
    """
    progress = progress or Silent()

    def trained(
        role: str,
        images: ImageSet,
        recipe: Recipe,
        old: Model | None = None,
        method: str = NO_METHOD,
    ) -> Model:
        run = plan_run(images, recipe, old=old, method=method)
        folder = out / "models" / f"{role}-{run.digest[:12]}"
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        return train(
            images,
            recipe,
            folder,
            old=old,
            method=method,
            resume=True,
            device=device,
            label=f"training the {role} model",
            progress=progress,
        )

    old = trained("old", plan.old_images, plan.old_recipe)
    new = trained("new", plan.new_images, plan.new_recipe, old, plan.method)
    free = trained("free", plan.new_images, plan.new_recipe.updated(warm_start=False))
    models = {"old": old, "new": new, "free": free}
    vectors = {
        role: embed_images(model, plan.test_images, progress=progress).vectors
        for role, model in models.items()
    }
    evaluation = evaluate_upgrade(
        vectors["old"], vectors["new"], plan.test_images.labels, free=vectors["free"]
    )
    return DemoResult(plan, models, evaluation)
