import pytest

from tests.training.recipes import RECIPE
from unibct.errors import UserError
from unibct.training.train import train


def test_a_last_step_that_ruins_the_model_is_noticed(glyph_classes, tmp_path):
    one_step = RECIPE.updated(epochs=1, batch_size=512, lr=1e30, warmup_epochs=0)
    with pytest.raises(UserError, match="diverged in epoch 0"):
        train(glyph_classes, one_step, tmp_path / "m", device="cpu")
    assert not (tmp_path / "m").exists()
