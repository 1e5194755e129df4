"""The demo: train an old, a new and a free model on the embedded images, evaluate, and upgrade.

At the end the upgrade is carried out on a small gallery, and back again.
"""

import shutil
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unibct import progress
from unibct.data.image_set import ImageSet
from unibct.data.readers import open_images
from unibct.data.scenarios import DEFAULT_SEED, SCENARIOS, split
from unibct.embeddings.extraction import embed_with_models
from unibct.errors import UserError
from unibct.evaluation.certificate import Certificate
from unibct.evaluation.evaluation import Evaluated, EvaluatedData, EvaluatedModel, UpgradeEvaluation
from unibct.evaluation.upgrade import evaluate_embeddings
from unibct.gallery.gallery import Answer, Gallery, NameCounts, count_names
from unibct.gallery.search import Queries, make_queries
from unibct.gallery.search_request import SearchRequest
from unibct.gallery.sources import open_source
from unibct.methods import DEFAULT_METHOD, NO_METHOD, find_method
from unibct.models.model import Model
from unibct.training.plan import plan_run, require_epochs_left, upgrade_recipes
from unibct.training.recipe import Recipe, load_recipe
from unibct.training.train import train

FAR = 1e-3
ROWS_PER_CLASS = 4
SHARES = (0.25, 0.5, 0.75, 1.0)  # of the rows that are the new model's own
STAGES = 2 + len(SHARES) + 2


@dataclass(frozen=True)
class Stage:
    """How the gallery searches at a moment of the upgrade."""

    title: str  # what has just been done
    searching: str  # ``old`` or ``new``, the model of the queries
    old_rows: int  # rows that the old model made
    new_rows: int  # rows that the new model made
    first: NameCounts  # the names of the first rows, however low their scores
    named: NameCounts  # the names of rows above the threshold for ``FAR``

    @property
    def share(self) -> float:
        """The share of rows that the new model made."""
        return self.new_rows / max(1, self.old_rows + self.new_rows)

    @property
    def top_1(self) -> float:
        """The share of queries whose first row is of their class."""
        return self.first.right / max(1, self.first.queries)

    @property
    def right_names(self) -> float:
        """The share of queries that get their name at ``FAR``."""
        return self.named.right / max(1, self.named.queries)


@dataclass(frozen=True)
class GalleryStory:
    """What became of the demo's gallery."""

    folder: Path  # of the gallery
    classes: int  # how many identities it knows
    far: float | None  # of the names; None if the test was too small for a threshold
    stages: tuple[Stage, ...]  # in their order
    # After the rollback every query found the same first row with the same score as at first; None
    # if it was not reached.
    restored: bool | None = None
    forced: str = ""  # the verdict, if it was not *compatible* and the upgrade was forced
    stopped: str = ""  # why the story ends early; empty if it does not

    @property
    def curve(self) -> tuple[Stage, ...]:
        """The stages from the upgrade to the full backfill."""
        return self.stages[1 : 2 + len(SHARES)]


def carry_upgrade_out(
    folder: Path,
    models: tuple[str, str],
    certificate: Certificate,
    images: ImageSet,
    *,
    device: Any = "auto",
) -> GalleryStory:
    """Make a gallery by the old model, upgrade it, backfill it, roll it back, and finish.

    What an earlier run has left in the folder is removed. ``models`` are the old and the new one.
    If their certificate does not say *compatible*, the upgrade is forced. The images are of classes
    that no model has seen; some of each class become rows, the others are queries.
    """
    shutil.rmtree(folder, ignore_errors=True)
    rows, searched = split_images(images)
    file = certificate.write(folder.parent / "certificate.json")
    gallery = Gallery.create(folder, models[0], certificates=[file], device=device)
    source, queries = open_source(searched), dict[str, Queries]()  # by the model that made them
    far = min((far for far in certificate.fars if far >= FAR), default=None)
    stages: list[Stage] = []
    answers: list[list[Answer]] = []

    def look(title: str) -> None:
        """Search with the same queries after each step, and add a stage."""
        status = gallery.status()
        model = status.state.standing.searching
        if model not in queries:
            queries[model] = make_queries(gallery.folder, source, SearchRequest())
        answers.append(gallery.search(queries[model], k=1))
        stages.append(
            Stage(
                title,
                "old" if model == certificate.old else "new",
                status.live.get(certificate.old, 0),
                status.live.get(certificate.new, 0),
                first=count_names(answers[-1]),
                named=count_names(gallery.search(queries[model], k=1, far=far)),
            )
        )

    stopped, restored = "", None
    with progress.task("the gallery", STAGES, "stages", weight=0.0) as advance:
        try:
            for title in _steps(gallery, rows, models[1], file, not certificate.is_compatible):
                look(title)
                advance(1)
                if title == "rollback":
                    before, after = ([a.hits for a in answers[place]] for place in (0, -1))
                    restored = before == after
        except UserError as error:
            stopped = str(error)
        finally:
            gallery.close()
    forced = "" if certificate.is_compatible else certificate.verdict
    classes = len(images.class_names)
    return GalleryStory(folder, classes, far, tuple(stages), restored, forced, stopped)


def _steps(
    gallery: Gallery, rows: ImageSet, new: str, certificate: Path, force: bool
) -> Generator[str]:
    """Take one step after another, and yield what was done."""
    gallery.add(rows)
    yield "before"
    gallery.upgrade(new, [certificate], force=force)
    yield "upgrade"
    for share in SHARES:
        gallery.backfill(rows, share=share)
        yield f"backfill {share:.0%}"
    gallery.rollback()
    yield "rollback"
    gallery.upgrade(new, [certificate], force=force)
    gallery.backfill(rows)
    gallery.finish()
    yield "upgrade again, finish"


def split_images(images: ImageSet, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Return some images of each class as rows, and the others as queries."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(images))
    rows = np.sort(
        np.concatenate(
            [
                order[images.labels[order] == label][:ROWS_PER_CLASS]
                for label in range(len(images.class_names))
            ]
        )
    )
    return images.select(rows), images.select(np.setdiff1d(np.arange(len(images)), rows))


# The runs before it.


@dataclass(frozen=True)
class DemoPlan:
    """What the demo will do."""

    scenario: str  # how the new training set relates to the old one
    method: str  # how the new model is made compatible
    old_images: ImageSet  # what the old model is trained on
    new_images: ImageSet  # what the new and the free model are trained on
    test_images: ImageSet  # what all models are tested on; no model has seen their classes
    old_recipe: Recipe  # of the old model's run
    new_recipe: Recipe  # of the new and the free model's run
    # What the gallery is made of at the end: other classes that no model has seen, and that the
    # certificate's thresholds do not come from.
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
    """What the demo made."""

    plan: DemoPlan  # what was done
    models: dict[str, Model]  # the models ``old``, ``new`` and ``free``
    evaluation: UpgradeEvaluation  # the tests and the verdict
    gallery: GalleryStory | None = None  # the upgrade, step by step; None if it was not carried out


def plan_demo(
    scenario: str = "extended-data",
    method: str = DEFAULT_METHOD,
    seed: int = 0,
    *,
    part: str = "test",
    overrides: Sequence[str] = (),
) -> DemoPlan:
    """Return a plan of the demo. A bad name raises an error before any work is done.

    The seed chooses the split (666 + seed) and the initial weights, ``part`` the embedded images to
    test on: ``val`` to choose recipes, ``test`` to report. ``overrides`` are ``key=value`` changes
    of the recipe.
    """
    SCENARIOS.find(scenario)
    entry = find_method(method)
    images = open_images("glyphs:train")
    sets = split(images.labels, scenario, seed=DEFAULT_SEED + seed)
    old_images, new_images = images.select(sets.old), images.select(sets.new)
    entry.check_classes(old_images.class_names, new_images.class_names)
    recipe = load_recipe("glyphs", overrides)
    if recipe.seed is not None:
        raise UserError(f"seed = {recipe.seed}: give the seed of the demo as seed")
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


def run_demo(plan: DemoPlan, out: Path, *, fresh: bool = False, device: str = "auto") -> DemoResult:
    """Train the three models, or continue what an earlier run has left, evaluate and upgrade.

    The models go to ``out/models``, each in a folder that is named after its run; the certificate
    and the gallery, which every run makes again, go beside them. ``fresh`` trains again even if a
    finished model of the same run is there.
    """
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
        )

    old = train_role("old", plan.old_images, plan.old_recipe)
    new = train_role("new", plan.new_images, plan.new_recipe, old, plan.method)
    free = train_role("free", plan.new_images, plan.new_recipe.updated(warm_start=None))
    models = {"old": old, "new": new, "free": free}
    evaluation = _evaluated(plan, models)
    gallery = carry_upgrade_out(
        out / f"gallery-{new.fingerprint[:12]}",
        (str(folders["old"]), str(folders["new"])),
        Certificate.of(evaluation),
        plan.gallery_images,
        device=new.device,
    )
    return DemoResult(plan, models, evaluation, gallery)


def _evaluated(plan: DemoPlan, models: dict[str, Model]) -> UpgradeEvaluation:
    """Return the tests and the verdict, with all that a certificate needs."""
    embedded = embed_with_models(list(models.values()), plan.test_images)
    embeddings = dict(zip(models, embedded, strict=True))
    old, new = embeddings["old"], embeddings["new"]
    return evaluate_embeddings(
        old=old,
        new=new,
        free=embeddings["free"],
        images=plan.test_images,
        score_scale=models["new"].score_scale,
        evaluated=Evaluated(
            EvaluatedModel.of(models["old"], old.vectors),
            EvaluatedModel.of(models["new"], new.vectors),
            EvaluatedData.of(plan.test_images),
        ),
        backfill_curve=True,
    )
