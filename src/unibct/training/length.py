"""How long a training is: the steps of an epoch, and epochs enough for the recipe's steps."""

from unibct.training.recipe import Recipe


def images_per_epoch(images: int, batch_size: int) -> int:
    """Return how many images an epoch uses.

    Only whole batches: a last batch of one or two images would upset batch normalisation. A set
    that is smaller than a batch is one small batch.
    """
    return images // batch_size * batch_size if images >= batch_size else images


def steps_per_epoch(images: int, batch_size: int) -> int:
    """Return how many batches an epoch has."""
    return -(-images_per_epoch(images, batch_size) // batch_size)


def with_enough_epochs(recipe: Recipe, images: int) -> Recipe:
    """Return the recipe with enough epochs to train for at least ``recipe.steps`` steps.

    If there are more epochs, everything that is written in epochs is stretched by the same
    factor: it happens at the same share of the training. A recipe that has enough is returned as
    it is, so this may be called again with its own result.

    Args:
        recipe: as the user gave it.
        images: number of training images.
    """
    in_an_epoch = steps_per_epoch(images, recipe.batch_size)
    if recipe.steps is None or in_an_epoch * recipe.epochs >= recipe.steps:
        return recipe
    before, after = recipe.epochs, -(-recipe.steps // in_an_epoch)

    def stretched(epoch: int) -> int:
        # Half an epoch goes up. In integers: epochs that differ by one or more stay different.
        return (2 * epoch * after + before) // (2 * before)

    return recipe.updated(
        epochs=after,
        milestones=tuple(stretched(epoch) for epoch in recipe.milestones),
        warmup_epochs=stretched(recipe.warmup_epochs),
        refresh_epochs=tuple(stretched(epoch) for epoch in recipe.refresh_epochs),
        lr_warmup_epochs=recipe.lr_warmup_epochs * after / before,
    )


def length_note(given: Recipe, used: Recipe, images: int) -> str | None:
    """Say in a line why a training has more epochs than its recipe; None if it has not.

    Args:
        given: the recipe as the user gave it.
        used: what ``with_enough_epochs`` returned for it.
        images: number of training images.
    """
    if given.epochs == used.epochs:
        return None
    return (
        f"{used.epochs} epochs instead of {given.epochs}: {images:,} images are "
        f"{steps_per_epoch(images, given.batch_size):,} steps per epoch, and the recipe asks for "
        f"at least {given.steps:,} steps (change it with --set steps=N)"
    )
