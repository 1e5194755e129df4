from unibct.models.architectures.architecture import NetworkRequest
from unibct.training.recipe import Recipe


def test_a_recipe_asks_for_the_same_pooling_by_default():
    assert NetworkRequest().pooling == Recipe().pooling
