"""The check, after each epoch, that training has not diverged."""

import numpy as np
import torch
from numpy.typing import NDArray

from unibct.errors import UserError
from unibct.training.context import RunContext
from unibct.training.state import TrainingState, current_model


def require_finite(
    context: RunContext, state: TrainingState, mean_loss: float, batch: NDArray[np.int64]
) -> None:
    """Refuse to continue with a loss, embeddings or class weights that are not finite.

    The losses were computed before the last step, so its result shows only in new embeddings.

    Args:
        context: the run.
        state: after the epoch's last step.
        mean_loss: of the epoch.
        batch: (batch,) rows of images to embed, of all ranks together.
    """
    ranks = context.ranks
    own_rows = batch[ranks.batch_slice(len(batch))]
    pixels = next(context.pixels.batches(own_rows, len(batch)))
    finite = np.isfinite(current_model(context, state).embed_pixels(pixels)).all()
    finite &= bool(torch.isfinite(state.class_weights).all())
    finite &= bool(np.isfinite(mean_loss))
    if ranks.any(not finite, context.device):
        raise UserError(
            f"training diverged in epoch {state.epoch}: loss or embeddings are not finite; "
            f"lower lr (now {context.recipe.lr}) or raise lr_warmup_epochs"
        )
