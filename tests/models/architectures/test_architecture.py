from unibct.models.architectures.architecture import POOLINGS, NetworkRequest
from unibct.training.recipe import Recipe


def test_a_recipe_knows_the_same_poolings():
    assert NetworkRequest().pooling == Recipe().pooling
    assert [Recipe(pooling=name).pooling for name in POOLINGS] == list(POOLINGS)
