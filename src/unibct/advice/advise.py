"""Look at an upgrade before it is paid for: the public function."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from unibct.advice.applicable import MethodAdvice, method_advice
from unibct.advice.commands import upgrade_commands
from unibct.advice.costs import Cost, backfill_cost, mapping_cost, training_cost
from unibct.advice.old_model import old_strength, scenario_of, usable_images
from unibct.advice.rates import Rates, forward_rate, map_rate, read_sample, sample_of, trial_run
from unibct.advice.request import AdviceRequest
from unibct.advice.scenario import FoundScenario
from unibct.data.image_set import ImageSet
from unibct.data.readers.table import open_images
from unibct.distributed.device import pick_device
from unibct.embedders.table import open_embedder
from unibct.embeddings.stored import StoredEmbeddings
from unibct.embeddings.strength import Strength
from unibct.errors import UserError
from unibct.models.embedder import Embedder, ImageEmbedder
from unibct.models.model import Model
from unibct.models.old_space import old_space_dim
from unibct.progress import Progress, Silent
from unibct.training.default_recipe import choose_recipe
from unibct.training.network import recipe_architecture, recipe_input
from unibct.training.plan import Run, plan_run
from unibct.training.recipe import Recipe, load_recipe

ROWS_IF_UNKNOWN = 1_000_000  # of the gallery


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
    old = open_embedder(request.old, device=request.device, with_classifier=True, progress=progress)
    images = open_images(request.data, request.images)
    old_set, gallery = request.open_old_set(), request.open_gallery()
    scenario = scenario_of(old, images, old_set)
    same_set = scenario.names == ("identical-data",)
    recipe, line, options, larger = _recipe(request, images, want_larger=same_set)
    run = plan_run(images, recipe, old=old, method=request.method)  # refuses what cannot work
    usable = usable_images(old, images)
    if len(usable.class_names) < 2:
        raise UserError(
            f"{request.old} has embeddings of {len(usable.class_names)} class of {images.name}: an "
            "upgrade needs at least two"
        )
    progress.note("measuring the old model on a sample")
    strength, strength_on = old_strength(old, usable, recipe_input(recipe).frame)
    progress.note("measuring reading, embedding and training on a sample")
    in_gallery = gallery if isinstance(gallery, ImageSet) else None
    rates = _measure(request, usable, in_gallery, recipe, old)
    rows = ROWS_IF_UNKNOWN if gallery is None else gallery
    costs = {
        "training": training_cost(recipe, len(images), request.method, rates),
        "mapping": mapping_cost(len(images), rates),
        "backfill": backfill_cost(rows if isinstance(rows, int) else len(rows), rates),
    }
    return Advice(
        scenario=scenario,
        methods=method_advice(
            old.class_identities if isinstance(old, Model) else (),
            images.class_identities,
            has_classifier=isinstance(old, Model) and old.class_weights is not None,
            dims=(run.dim, old.dim),
        ),
        strength=strength,
        strength_on=strength_on,
        recipe=line,
        device=str(device),
        rates=rates,
        costs=costs,
        commands=upgrade_commands(
            request, options, larger=larger, warm_start=bool(recipe.warm_start)
        ),
        notes=(
            *_old_model_notes(old, images, len(usable), run),
            *_notes(strength, costs, gallery_known=gallery is not None),
        ),
    )


def _recipe(
    request: AdviceRequest, images: ImageSet, *, want_larger: bool
) -> tuple[Recipe, str, list[str], str | None]:
    """Return the recipe of the new model, a line about it, and what to say to choose it.

    Args:
        request: what was asked.
        images: the new training set.
        want_larger: take the next larger network, unless the user has named one.

    Returns:
        the recipe, the line, the words that name the recipe, if the user named one, and the
        larger network, if it was taken.
    """
    choice = None if request.recipe is not None else choose_recipe(images)
    if choice is None:
        name = str(request.recipe)
        recipe, options = load_recipe(name, request.settings), ["--recipe", name]
    else:
        recipe, options = choice.load(request.settings), []
    is_named = any(text.partition("=")[0].strip() == "architecture" for text in request.settings)
    larger = recipe_architecture(recipe).larger if want_larger and not is_named else None
    if larger is not None:
        recipe = recipe.updated(architecture=larger)
    line = f"recipe {request.recipe}" if choice is None else choice.line(recipe)
    if larger is not None:
        line += f"; with {larger}, because the images are the same"
    return recipe, line, options, larger


def _measure(
    request: AdviceRequest,
    images: ImageSet,
    gallery: ImageSet | None,
    recipe: Recipe,
    old: Embedder,
) -> Rates:
    """Measure everything that an upgrade would spend time on."""
    frame = recipe_input(recipe).frame
    sample = read_sample(sample_of(images), frame)
    gallery_rate = sample.rate
    if gallery is not None:
        gallery_rate = read_sample(sample_of(gallery), frame).rate
    old_forward = None
    if not isinstance(old, StoredEmbeddings):
        old_embedder = cast(ImageEmbedder, old)
        old_pixels = read_sample(sample.images, old_embedder.input.frame).pixels
        old_forward = forward_rate(old_embedder, old_pixels)
    training_rate, trial = trial_run(
        sample.images, recipe, old=old, method=request.method, device=request.device
    )
    return Rates(
        reading=sample.rate,
        gallery_reading=gallery_rate,
        old_forward=old_forward,
        new_forward=forward_rate(trial, sample.pixels),
        training=training_rate,
        map_rows=map_rate(trial.dim, old.dim),
    )


def _old_model_notes(old: Embedder, images: ImageSet, usable: int, run: Run) -> list[str]:
    """Return what is special about an old model: stored embeddings, another dimension."""
    notes: list[str] = []
    if isinstance(old, StoredEmbeddings):
        if usable < len(images):
            missing = next(image_id for image_id in images.ids if image_id not in old.position)
            notes.append(
                f"{old.name} has no embedding of {len(images) - usable:,} of {len(images):,} "
                f"images, first {missing!r}; training and mapping need them all: add them, or name "
                "the others with --images"
            )
        notes.append(
            "evaluate needs the stored embeddings of the test images too, in the same file or in "
            "another"
        )
    if run.projected_dim is not None:
        notes.append(
            f"the new model has {run.dim} dimensions and the old one {old.dim}: it gets a "
            "projection into the old space, which evaluate uses by itself; for the old gallery, "
            "embed and export 'models/new?space=old'"
        )
    own_old_dim = old_space_dim(old) if isinstance(old, Model) else None
    if own_old_dim is not None:
        notes.append(
            f"the old model has a projection into the {own_old_dim} dimensions of its own old "
            "model: if the gallery holds rows of that space, give --old 'MODEL?space=old'"
        )
    return notes


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
        "compatibility takes about as long as the training; a map may find less than compatible "
        "training, so evaluate both"
    )
    return tuple(notes)
