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
