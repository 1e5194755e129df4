import pytest

from tests.training.recipes import RECIPE
from unibct.distributed.ranks import Ranks
from unibct.errors import UserError
from unibct.training.plan import plan_run
from unibct.training.processes import require_enough_for_all


@pytest.mark.parametrize(
    ("world", "batch_size", "message"),
    [
        (5, 16, "batch_size = 16 cannot be divided evenly by 5 processes"),
        (2, 32, "24 images are too few for 2 processes"),
        (6, 12, "4 classes are too few for 6 processes"),
    ],
)
def test_what_the_processes_cannot_divide_is_refused(world, batch_size, message, four_classes):
    run = plan_run(four_classes, RECIPE.updated(batch_size=batch_size))
    with pytest.raises(UserError, match=message):
        require_enough_for_all(run, Ranks(0, world))
    require_enough_for_all(run, Ranks())
    require_enough_for_all(plan_run(four_classes, RECIPE.updated(batch_size=12)), Ranks(1, 4))


def test_one_image_for_each_process_needs_a_common_batch_normalisation(four_classes):
    alone = plan_run(four_classes, RECIPE.updated(batch_size=4, sync_batch_norm=False))
    with pytest.raises(UserError, match="batch_size = 4 leaves each of 4 processes one image"):
        require_enough_for_all(alone, Ranks(0, 4))
    require_enough_for_all(alone, Ranks(0, 2))
    require_enough_for_all(alone, Ranks())
    together = plan_run(four_classes, RECIPE.updated(batch_size=4))
    require_enough_for_all(together, Ranks(0, 4))
