"""Checks that the processes of a run can train together."""

import hashlib

import torch

from unibct.distributed.ranks import Ranks
from unibct.errors import UserError
from unibct.training.plan import Run


def require_enough_for_all(run: Run, ranks: Ranks) -> None:
    """Refuse a batch, images or classes that the processes cannot divide among them."""
    if ranks.world == 1:
        return
    batch_size, images = run.recipe.batch_size, run.images
    if batch_size % ranks.world:
        raise UserError(
            f"batch_size = {batch_size} cannot be divided evenly by {ranks.world} processes; "
            "choose a multiple"
        )
    if batch_size == ranks.world and not run.recipe.sync_batch_norm:
        raise UserError(
            f"batch_size = {batch_size} leaves each of {ranks.world} processes one image, and with "
            "sync_batch_norm = false one image is all it normalises over; choose a larger batch"
        )
    for count, needed, what in (
        (len(images), batch_size, "images"),
        (len(images.class_names), ranks.world, "classes"),
    ):
        if count < needed:
            raise UserError(
                f"{count} {what} are too few for {ranks.world} processes (batch_size = "
                f"{batch_size}); train in one process"
            )


def require_started_alike(ranks: Ranks, options: str, device: torch.device) -> None:
    """Refuse processes with different options, which would wait for each other forever.

    Args:
        ranks: the processes.
        options: everything that must be the same, as text.
        device: where the processes compare it.
    """
    own_digest = int(hashlib.sha256(options.encode()).hexdigest()[:15], 16)
    first_digest = ranks.broadcast_numbers(own_digest)[0]
    if ranks.any(first_digest != own_digest, device):
        raise UserError(
            "the processes were not started alike: give each the same command, data and "
            "environment, on every machine"
        )
