"""Look at an upgrade before it is paid for: scenario, methods, the old model, and what it costs.

``advise`` at the end does it; above it stand its parts: what is asked, the costs, the methods that
can be used, and the commands that carry the advice out.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from unibct import progress
from unibct.advice.measured import (
    FoundScenario,
    Rates,
    forward_rate,
    map_rate,
    old_strength,
    read_sample,
    sample_of,
    scenario_of,
    trial_run,
    usable_images,
)
from unibct.data.image_set import ImageSet
from unibct.data.loader import fits_in_memory
from unibct.data.readers import open_images
from unibct.distributed.device import pick_device
from unibct.embedders import open_embedder
from unibct.embeddings.recall import ModelRecall
from unibct.embeddings.stored import StoredEmbeddings
from unibct.errors import UserError
from unibct.methods import DEFAULT_METHOD, METHODS, NO_METHOD, MethodEntry, find_method
from unibct.models.embedder import Embedder, ImageEmbedder
from unibct.models.model import Model
from unibct.models.old_space import old_space_dim
from unibct.training.default_recipe import choose_recipe
from unibct.training.network import recipe_architecture, recipe_input
from unibct.training.plan import Run, images_per_epoch, plan_run, with_enough_epochs
from unibct.training.recipe import Recipe, load_recipe


@dataclass(frozen=True)
class AdviceRequest:
    """An upgrade that someone thinks about."""

    old: str | Path  # the old model: a model folder, or anything else that ``open_embedder`` opens
    data: str  # the new training set, as a name for ``open_images``
    images: Path | None = None  # a list of ids: only these images of ``data``
    # The old model's training set. None means that only its classes are known.
    old_data: str | None = None
    old_images: Path | None = None  # a list of ids: only these images of ``old_data``
    # The gallery's images, as a name for ``open_images``, or their number.
    gallery: str | None = None
    method: str = DEFAULT_METHOD  # the compatibility method
    recipe: str | None = None  # of the new model. None means the shipped recipe that fits ``data``.
    settings: tuple[str, ...] = ()  # what is changed in the recipe, each as ``key=value``
    device: str = "auto"  # where to compute

    def open_old_set(self) -> ImageSet | None:
        """Open the old model's training set, if it is given."""
        if self.old_data is None and self.old_images is None:
            return None
        return open_images(self.old_data or self.data, self.old_images)

    @property
    def gallery_rows(self) -> int | None:
        """How many rows the gallery has, if it is given as a number."""
        number = (self.gallery or "").replace(",", "").replace("_", "")
        return int(number) if number.isdecimal() else None

    def open_gallery(self) -> ImageSet | int | None:
        """Open the gallery's images, or return their number; None if nothing is known."""
        if self.gallery is None:
            return None
        rows = self.gallery_rows
        if rows is None:
            return open_images(self.gallery)
        if rows < 1:
            raise UserError(f"--gallery {self.gallery}: a gallery has at least one row")
        return rows


# What training, mapping and a backfill would take, extrapolated from measured rates.


@dataclass(frozen=True)
class Cost:
    """The estimated time of one way to upgrade.

    The parts are added: where a GPU computes while the processor reads, it takes less.
    """

    what: str  # in a few words
    parts: Mapping[str, float]  # seconds of each part

    @property
    def seconds(self) -> float:
        """All parts together."""
        return sum(self.parts.values())

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {"what": self.what, "estimated_seconds": self.seconds, "parts": dict(self.parts)}


def training_cost(recipe: Recipe, images: int, method: str, rates: Rates) -> Cost:
    """Estimate the training on so many images with a recipe and a method, as the user gives them.

    The rates were measured with both.
    """
    used = with_enough_epochs(recipe, images)
    passed = used.epochs * images_per_epoch(images, used.batch_size)
    parts = {"reading": images / rates.reading}
    if find_method(method).needs_old_embeddings and rates.old_forward is not None:
        parts["old embeddings"] = (2 if used.flip else 1) * images / rates.old_forward
    if not fits_in_memory(images, recipe_input(used).frame):
        parts["reading in every epoch"] = passed / rates.reading
    parts["training steps"] = passed / rates.training
    return Cost(f"train for {used.epochs:,} epochs on {images:,} images", parts)


def mapping_cost(images: int, rates: Rates) -> Cost:
    """Estimate a linear map from a finished new model into the old space."""
    if rates.old_forward is None:  # they are stored
        parts = {"reading": images / rates.reading}
    else:
        parts = {
            "reading, once for each model": 2 * images / rates.reading,
            "old embeddings": images / rates.old_forward,
        }
    parts |= {"new embeddings": images / rates.new_forward, "fitting": images / rates.map_rows}
    return Cost(f"map a finished new model, fitted on {images:,} images", parts)


def backfill_cost(rows: int, rates: Rates) -> Cost:
    """Estimate how long it takes to embed a gallery again with the new model."""
    parts = {"reading": rows / rates.gallery_reading, "new embeddings": rows / rates.new_forward}
    return Cost(f"embed {rows:,} gallery images again", parts)


# Which compatibility methods can train with an old model and a new training set.


@dataclass(frozen=True)
class MethodAdvice:
    """Whether a method can be used."""

    name: str  # from ``METHODS``
    description: str  # what it does, in a line
    obstacle: str | None  # why it cannot be used; None if it can

    @property
    def applies(self) -> bool:
        """Whether the method can be used."""
        return self.obstacle is None

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "name": self.name,
            "applies": self.applies,
            "obstacle": self.obstacle,
            "default": self.name == DEFAULT_METHOD,
        }


def method_advice(
    old_classes: Sequence[str],
    new_classes: Sequence[str],
    *,
    has_classifier: bool,
    dims: tuple[int, int] | None = None,
) -> tuple[MethodAdvice, ...]:
    """Return each compatibility method, and why those that cannot be used cannot.

    The classes are what tells each class of a model or set from all others. ``has_classifier`` says
    whether the old model has its class weights; ``dims`` are those of the new and the old model, by
    default equal.
    """

    def obstacle(entry: MethodEntry) -> str | None:
        if entry.needs_same_dim and dims is not None and dims[0] != dims[1]:
            return f"it mixes new and old embeddings, of {dims[0]} and {dims[1]} dimensions"
        if entry.needs_old_classifier and not has_classifier:
            return "it needs the old classifier, and the old model has none"
        try:
            entry.check_classes(old_classes, new_classes)
        except UserError as error:
            return str(error)
        return None

    return tuple(
        MethodAdvice(name, entry.description, obstacle(entry))
        for name, entry in METHODS.items()
        if name != NO_METHOD
    )


# The commands that carry out what was advised.

_TEST = "TEST-DATA"  # the user's images of classes that neither model has seen


def upgrade_commands(
    request: AdviceRequest,
    recipe_options: Sequence[str],
    *,
    larger: str | None = None,
    warm_start: bool = False,
) -> dict[str, tuple[str, ...]]:
    """Return the command lines of each way to upgrade, by the name of the way.

    ``recipe_options`` are the words that name the recipe, such as ``--recipe`` and ``photographs``;
    none if ``train`` is to choose the one that fits. ``larger`` is an architecture for the new
    model, if the training set is the old one; ``warm_start`` says whether the recipe asks for the
    old weights.
    """
    old, data = shlex.quote(str(request.old)), _data(request.data, request.images)
    chosen = [*map(shlex.quote, recipe_options), *_settings(request.settings)]
    # The free model has no old one to start from.
    alone = [text for text in request.settings if text.partition("=")[0].strip() != "warm_start"]
    free = [*map(shlex.quote, recipe_options), *_settings(alone)]
    if warm_start and alone == list(request.settings):
        free.append("--no-warm-start")  # it is the recipe's own word
    if larger is not None:
        for words in (chosen, free):
            words += ["--set", f"architecture={larger}"]
    method = [] if request.method == DEFAULT_METHOD else ["--method", request.method]
    test = f"unibct evaluate {_TEST} --gallery {old} --query"
    gallery = request.gallery if request.gallery_rows is None else None
    return {
        "training": (
            _line("unibct train", data, "--old", old, *method, *chosen, "--out models/new"),
            f"{test} models/new",
        ),
        "mapping": (
            _line("unibct train", data, *free, "--out models/free"),
            _line("unibct adapt", data, "--new models/free --old", old, "--out models/adapted"),
            f"{test} models/adapted",
        ),
        "backfill": (
            f"unibct embed models/new {shlex.quote(gallery or 'GALLERY-IMAGES')} --out emb/new",
        ),
    }


def _data(data: str, images: object) -> str:
    return shlex.quote(data) + ("" if images is None else f" --images {shlex.quote(str(images))}")


def _settings(settings: Sequence[str]) -> list[str]:
    return [word for text in settings for word in ("--set", shlex.quote(text))]


def _line(*words: str) -> str:
    return " ".join(word for word in words if word)


# Look at an upgrade before it is paid for: the public function.

ROWS_IF_UNKNOWN = 1_000_000  # of the gallery


@dataclass(frozen=True)
class Advice:
    """What is known of an upgrade before anything is trained. All times are estimates."""

    scenario: FoundScenario  # how the new training set relates to the old one
    methods: tuple[MethodAdvice, ...]  # each compatibility method, and whether it can be used
    # Of the old model on a sample of the new set; None if no class has two images.
    strength: ModelRecall | None
    strength_on: str  # which images that was measured on
    recipe: str  # what was chosen for the new model, in a line
    device: str  # where everything was measured
    rates: Rates  # images per second of each kind of work
    costs: Mapping[str, Cost]  # of training, mapping and a backfill, by name
    # The command lines of each way to upgrade, by the same names.
    commands: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()  # what else is worth knowing

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


def advise(request: AdviceRequest) -> Advice:
    """Look at an upgrade: its scenario, the methods, the old model, and what each way costs.

    Images are only read from a sample, and a few training steps on it are thrown away again.

    Args:
        request: the models and image sets.
    """
    device = pick_device(request.device)
    old = open_embedder(request.old, device=request.device, with_classifier=True)
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
    """Return the recipe of the new model, a line about it, and the words that name it.

    The words are empty unless the user named a recipe. Last comes the next larger network, if it is
    wanted and was taken because the user has named none.
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
            missing = next(
                image_id for image_id in images.ids if image_id not in old.embeddings.position
            )
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
    strength: ModelRecall | None, costs: Mapping[str, Cost], *, gallery_known: bool
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
