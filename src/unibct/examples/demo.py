"""The demo: train an old, a new and a free model on the embedded images, evaluate and upgrade."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unibct.data.image_set import ImageSet
from unibct.data.readers.table import open_images
from unibct.data.scenarios import DEFAULT_SEED, find_scenario, split
from unibct.embeddings.extraction import embed_images
from unibct.errors import UserError
from unibct.evaluation.subjects import Subjects, subject_data, subject_model
from unibct.evaluation.upgrade import UpgradeEvaluation, evaluate_upgrade
from unibct.examples.demo_gallery import GalleryStory, carry_upgrade_out
from unibct.gallery.certify import certify
from unibct.methods.table import DEFAULT_METHOD, NO_METHOD, find_method
from unibct.models.model import Model
from unibct.progress import Progress, Silent
from unibct.training.plan import plan_run, require_epochs_left, upgrade_recipes
from unibct.training.recipe import Recipe, load_recipe
from unibct.training.train import train


@dataclass(frozen=True)
class DemoPlan:
    """What the demo will do.

    Attributes:
        scenario: how the new training set relates to the old one.
        method: how the new model is made compatible.
        old_images: what the old model is trained on.
        new_images: what the new and the free model are trained on.
        test_images: what all models are tested on; no model has seen their classes.
        old_recipe: every number of the old model's run.
        new_recipe: every number of the new and the free model's run.
        gallery_images: what the gallery is made of at the end: other classes that no model has
            seen, and that the certificate's thresholds do not come from.
    """

    scenario: str
    method: str
    old_images: ImageSet
    new_images: ImageSet
    test_images: ImageSet
    old_recipe: Recipe
    new_recipe: Recipe
    gallery_images: ImageSet

    @property
    def work(self) -> float:
        """The number of images that go through training; an embedded image counts as a third."""
        old_work = self.old_recipe.epochs * len(self.old_images)
        new_work = self.new_recipe.epochs * len(self.new_images)
        # The old model embeds the new set, and all three models embed the test set.
        embedding_work = len(self.new_images) / 3 + len(self.test_images)
        return old_work + 2 * new_work + embedding_work


@dataclass(frozen=True)
class DemoResult:
    """What the demo made.

    Attributes:
        plan: what was done.
        models: the models ``old``, ``new`` and ``free``.
        evaluation: the tests and the verdict.
        gallery: the upgrade of a small gallery, step by step; None if it was not carried out.
    """

    plan: DemoPlan
    models: dict[str, Model]
    evaluation: UpgradeEvaluation
    gallery: GalleryStory | None = None


def plan_demo(
    scenario: str = "extended-data",
    method: str = DEFAULT_METHOD,
    seed: int = 0,
    *,
    part: str = "test",
    overrides: Sequence[str] = (),
) -> DemoPlan:
    """Return a plan of the demo. A bad name raises an error before any work is done.

    Args:
        scenario: a name from ``SCENARIOS``.
        method: a name from ``METHODS``.
        seed: chooses the split (666 + seed) and the initial weights.
        part: the embedded images to test on: ``val`` to choose recipes, ``test`` to report.
        overrides: ``key=value`` changes of the recipe.
    """
    find_scenario(scenario)
    entry = find_method(method)
    images = open_images("glyphs:train")
    sets = split(images.labels, scenario, seed=DEFAULT_SEED + seed)
    old_images, new_images = images.select(sets.old), images.select(sets.new)
    entry.check_classes(old_images.class_names, new_images.class_names)
    recipe = load_recipe("glyphs", overrides)
    if recipe.seed is not None:
        raise UserError(f"seed = {recipe.seed}: give the seed of the demo with --seed")
    require_epochs_left(method, recipe)
    old_recipe, new_recipe = upgrade_recipes(recipe, scenario, seed)
    return DemoPlan(
        scenario,
        method,
        old_images,
        new_images,
        open_images(f"glyphs:{part}"),
        old_recipe,
        new_recipe,
        open_images("glyphs:val" if part == "test" else "glyphs:test"),
    )


def run_demo(
    plan: DemoPlan,
    out: Path,
    *,
    fresh: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
) -> DemoResult:
    """Train the three models, or continue what an earlier run has left, evaluate and upgrade.

    Args:
        plan: what to do.
        out: the models go to ``out/models``, each in a folder that is named after its run; the
            certificate and the gallery, which every run makes again, go beside them.
        fresh: train again even if a finished model of the same run is there.
        device: ``auto``, ``cpu``, ``cuda``, …
        progress: reports progress per image.
    """
    progress = progress or Silent()
    folders: dict[str, Path] = {}

    def train_role(
        role: str,
        images: ImageSet,
        recipe: Recipe,
        old: Model | None = None,
        method: str = NO_METHOD,
    ) -> Model:
        run = plan_run(images, recipe, old=old, method=method)
        folders[role] = folder = out / "models" / f"{role}-{run.digest[:12]}"
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        return train(
            images,
            recipe,
            folder,
            old=old,
            method=method,
            resume=True,
            validation=0,
            device=device,
            label=f"training the {role} model",
            progress=progress,
        )

    old = train_role("old", plan.old_images, plan.old_recipe)
    new = train_role("new", plan.new_images, plan.new_recipe, old, plan.method)
    free = train_role("free", plan.new_images, plan.new_recipe.updated(warm_start=None))
    models = {"old": old, "new": new, "free": free}
    evaluation = _evaluated(plan, models, progress)
    gallery = carry_upgrade_out(
        out / f"gallery-{new.fingerprint[:12]}",
        (str(folders["old"]), str(folders["new"])),
        certify(evaluation),
        plan.gallery_images,
        device=new.device,
        progress=progress,
    )
    return DemoResult(plan, models, evaluation, gallery)


def _evaluated(plan: DemoPlan, models: dict[str, Model], progress: Progress) -> UpgradeEvaluation:
    """Return the tests and the verdict, with all that a certificate needs."""
    embeddings = {
        role: embed_images(model, plan.test_images, progress=progress)
        for role, model in models.items()
    }
    evaluation = evaluate_upgrade(
        embeddings["old"],
        embeddings["new"],
        free=embeddings["free"],
        images=plan.test_images,
        score_scale=models["new"].score_scale,
        backfill_curves=True,
        progress=progress,
    )
    old, new = (subject_model(models[r], embeddings[r].vectors) for r in ("old", "new"))
    return replace(evaluation, subjects=Subjects(old, new, subject_data(plan.test_images)))
