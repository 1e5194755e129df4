"""What stays the same from the first to the last step of a run."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unibct.data.loader import PixelBatches
from unibct.data.training_classes import NO_CLASSES, TrainingClasses
from unibct.distributed.ranks import Ranks
from unibct.models.architectures import Architecture
from unibct.models.input import InputSpec
from unibct.training.network import recipe_architecture, recipe_input
from unibct.training.plan import Run, ValidationSet, images_per_epoch, steps_per_epoch
from unibct.training.recipe import Recipe


@dataclass(frozen=True)
class RunContext:
    """A run's plan, images and place. All of it is fixed before the first step.

    Attributes:
        run: what determines the result.
        pixels: the training images, decoded.
        device: where the network is trained.
        ranks: the processes that share the run.
        out: the model's folder.
        cache: a folder that several runs share. None means that they share nothing.
        validation: images of classes that are set aside. None means that there are none.
        first_classes: what the first weights, and finished vectors, have learnt from.
    """

    run: Run
    pixels: PixelBatches
    device: torch.device
    ranks: Ranks
    out: Path
    cache: Path | None = None
    validation: ValidationSet | None = None
    first_classes: TrainingClasses = NO_CLASSES

    @property
    def recipe(self) -> Recipe:
        """Every number of the run."""
        return self.run.recipe

    @cached_property
    def architecture(self) -> Architecture:
        """How the network is built."""
        return recipe_architecture(self.recipe)

    @cached_property
    def input(self) -> InputSpec:
        """The images that the network takes."""
        return recipe_input(self.recipe, self.architecture)

    @property
    def description(self) -> dict[str, Any]:
        """Plain values that tell this run from others, the pixels included."""
        validation = self.validation
        return (
            self.run.description()
            | {"pixels": self.pixels.digest}
            | ({} if validation is None else {"validation": validation.description()})
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of all classes."""
        return self.pixels.images.class_names

    @property
    def class_identities(self) -> tuple[str, ...]:
        """What tells each class from all others, see ``ImageSet``."""
        return self.pixels.images.class_identities

    @property
    def own_classes(self) -> range:
        """The classes whose weights this rank holds."""
        return self.ranks.share(len(self.class_names))

    @property
    def samples_classes(self) -> bool:
        """Whether a step uses only a sample of the classes."""
        return self.recipe.sample_rate < 1

    @cached_property
    def labels(self) -> Tensor:
        """(images,) the class of each training image, on the device."""
        return torch.from_numpy(self.pixels.images.labels).to(self.device)

    @property
    def images_per_epoch(self) -> int:
        """Images that an epoch uses, see ``training/plan.py``."""
        return images_per_epoch(len(self.pixels.images), self.recipe.batch_size)

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return steps_per_epoch(len(self.pixels.images), self.recipe.batch_size)
