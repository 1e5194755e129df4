"""Look at an upgrade before it is paid for: the public function."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from unibct.advice.applicable import MethodAdvice, method_advice
from unibct.advice.commands import upgrade_commands
from unibct.advice.costs import Cost, backfill_cost, mapping_cost, training_cost
from unibct.advice.rates import Rates, forward_rate, map_rate, read_sample, sample_of, trial_run
from unibct.advice.request import AdviceRequest
from unibct.advice.scenario import FoundScenario, find_scenario_of, unknown_scenario
from unibct.data.image_set import ImageSet
from unibct.data.readers.table import open_images
from unibct.distributed.device import pick_device
from unibct.embeddings.recall import sample_classes
from unibct.embeddings.strength import Strength, model_strength
from unibct.models.folder import load_model
from unibct.models.model import Model
from unibct.progress import Progress, Silent
from unibct.training.default_recipe import choose_recipe
from unibct.training.network import recipe_architecture, recipe_input
from unibct.training.plan import plan_run, unknown_identities
from unibct.training.recipe import Recipe, load_recipe

STRENGTH_IMAGES = 500  # on which the old model is measured
ROWS_IF_UNKNOWN = 1_000_000  # of the gallery
_CLASSES_NEEDED = 10  # unseen classes, for a measurement on them alone


@dataclass(frozen=True)
class Advice:
    """What is known of an upgrade before anything is trained. All times are estimates.

    Attributes:
        scenario: how the new training set relates to the old one.
        methods: each compatibility method, and whether it can be used.
        strength: of the old model on a sample of the new set; None if no class has two images.
        strength_on: which images that was measured on.
        recipe: what was chosen for the new model, in a line.
        device: where everything was measured.
        rates: images per second of each kind of work.
        costs: of training, mapping and a backfill, by name.
        commands: the command lines of each way to upgrade, by the same names.
        notes: what else is worth knowing.
    """

    scenario: FoundScenario
    methods: tuple[MethodAdvice, ...]
    strength: Strength | None
    strength_on: str
    recipe: str
    device: str
    rates: Rates
    costs: Mapping[str, Cost]
    commands: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "scenario": self.scenario.as_json(),
            "methods": [method.as_json() for method in self.methods],
            "old_model": None if self.strength is None else self.strength.as_json(),
            "old_model_measured_on": self.strength_on,
            "recipe": self.recipe,
            "device": self.device,
            "images_per_second": self.rates.as_json(),
            "costs": {name: cost.as_json() for name, cost in self.costs.items()},
            "commands": {name: list(lines) for name, lines in self.commands.items()},
            "notes": list(self.notes),
        }


def advise(request: AdviceRequest, progress: Progress | None = None) -> Advice:
    """Look at an upgrade: its scenario, the methods, the old model, and what each way costs.

    Images are only read from a sample, and a few training steps on it are thrown away again.

    Args:
        request: the models and image sets.
        progress: is told what is being measured.
    """
    progress = progress or Silent()
    device = pick_device(request.device)
    old = load_model(request.old, device=device, with_classifier=True)
    images = open_images(request.data, request.images)
    old_set, gallery = request.open_old_set(), request.open_gallery()
    recipe, line, options = _recipe(request, images)
    plan_run(images, recipe, old=old, method=request.method)  # refuses what cannot work
    scenario = _scenario(old, images, old_set)
    progress.note("measuring the old model on a sample")
    strength, strength_on = _strength(old, images)
    progress.note("measuring reading, embedding and training on a sample")
    in_gallery = gallery if isinstance(gallery, ImageSet) else None
    rates = _measure(request, images, in_gallery, recipe, old)
    rows = ROWS_IF_UNKNOWN if gallery is None else gallery
    costs = {
        "training": training_cost(recipe, len(images), request.method, rates),
        "mapping": mapping_cost(len(images), rates),
        "backfill": backfill_cost(rows if isinstance(rows, int) else len(rows), rates),
    }
    same_set = scenario.names == ("identical-data",)
    larger = recipe_architecture(recipe).larger if same_set else None
    return Advice(
        scenario=scenario,
        methods=method_advice(
            old.class_identities,
            images.class_identities,
            has_classifier=old.class_weights is not None,
        ),
        strength=strength,
        strength_on=strength_on,
        recipe=line,
        device=str(device),
        rates=rates,
        costs=costs,
        commands=upgrade_commands(request, options, larger=larger),
        notes=_notes(strength, costs, gallery_known=gallery is not None),
    )


def _recipe(request: AdviceRequest, images: ImageSet) -> tuple[Recipe, str, str]:
    """Return the recipe, a line about it, and the options that name it, if the user named one."""
    if request.recipe is not None:
        options = f"--recipe {request.recipe}"
        return load_recipe(request.recipe, request.settings), f"recipe {request.recipe}", options
    choice = choose_recipe(images)
    recipe = choice.load(request.settings)
    return recipe, choice.line(recipe), ""


def _scenario(old: Model, images: ImageSet, old_set: ImageSet | None) -> FoundScenario:
    """Compare the new set with the old one, or with the classes that the old model knows."""
    unknown = unknown_identities(old, images)
    if unknown is not None:
        return unknown_scenario(len(old.class_names), len(images.class_names), unknown)
    if old_set is None:
        return find_scenario_of(old.class_identities, images.class_identities, None, images.ids)
    return find_scenario_of(
        old_set.class_identities, images.class_identities, old_set.ids, images.ids
    )


def _strength(old: Model, images: ImageSet) -> tuple[Strength | None, str]:
    """Measure the old model on classes that it has not seen, if there are enough of them."""
    sizes = np.bincount(images.labels, minlength=len(images.class_names))
    known = set(old.class_identities)
    is_unseen = np.array([name not in known for name in images.class_identities])
    unseen_classes = np.flatnonzero(is_unseen & (sizes > 1))
    on = "classes that it was trained on, so it is better there than elsewhere"
    rows = np.arange(len(images))
    if len(unseen_classes) >= _CLASSES_NEEDED:
        rows, on = np.flatnonzero(np.isin(images.labels, unseen_classes)), "classes new to it"
    elif is_unseen.any():
        on = "classes of which it was trained on some"
    rows = rows[sample_classes(images.labels[rows], STRENGTH_IMAGES)]
    if not len(rows):
        return None, "nothing: no class has two images"
    sample = read_sample(images.select(rows), old.input.frame)
    vectors = np.concatenate(
        [old.embed_pixels(sample.pixels[i : i + 64]) for i in range(0, len(sample.pixels), 64)]
    )
    strength = model_strength(vectors, sample.images.labels, sample.pixels.__getitem__)
    return strength, f"{len(sample.images):,} images of {on}"


def _measure(
    request: AdviceRequest,
    images: ImageSet,
    gallery: ImageSet | None,
    recipe: Recipe,
    old: Model,
) -> Rates:
    """Measure everything that an upgrade would spend time on."""
    frame = recipe_input(recipe).frame
    sample = read_sample(sample_of(images), frame)
    gallery_rate = sample.rate
    if gallery is not None:
        gallery_rate = read_sample(sample_of(gallery), frame).rate
    old_pixels = read_sample(sample.images, old.input.frame).pixels
    training_rate, trial = trial_run(
        sample.images, recipe, old=old, method=request.method, device=request.device
    )
    return Rates(
        reading=sample.rate,
        gallery_reading=gallery_rate,
        old_forward=forward_rate(old, old_pixels),
        new_forward=forward_rate(trial, sample.pixels),
        training=training_rate,
        map_rows=map_rate(trial.dim, old.dim),
    )


def _notes(
    strength: Strength | None, costs: Mapping[str, Cost], *, gallery_known: bool
) -> tuple[str, ...]:
    """Return what the numbers mean for the decision."""
    notes = [
        "times are estimates from a sample on this machine as busy as it is now; many more "
        "classes than the sample's make training steps slower"
    ]
    if strength is not None and strength.too_weak:
        notes.append(
            "the old model is hardly better than raw pixels: an upgrade cannot be judged by it; a "
            "new model without compatibility and a backfill may serve better"
        )
    if not gallery_known:
        notes.append(f"the backfill is for {ROWS_IF_UNKNOWN:,} rows: say how many with --gallery")
    elif costs["backfill"].seconds < costs["training"].seconds:
        notes.append(
            "the backfill takes less time than the training: compatibility saves the switch-over, "
            "and little computing"
        )
    notes.append(
        "the mapping's time is for a new model that is finished: to train one without "
        "compatibility takes about as long as the training; a map mostly finds less"
    )
    return tuple(notes)
