import pytest

from unibct.evaluation.directions import (
    CROSS,
    DIRECTIONS,
    FREE_CROSS,
    OLD_SELF,
    direction_of,
    sides,
)


def test_a_direction_names_the_query_model_first():
    assert sides(CROSS) == ("new", "old")
    assert sides(FREE_CROSS) == ("free", "old")
    assert direction_of("old", "old") == OLD_SELF


@pytest.mark.parametrize("name", DIRECTIONS)
def test_sides_and_direction_of_are_inverse(name):
    assert direction_of(*sides(name)) == name


def test_every_direction_can_be_told_apart_in_a_table():
    assert len({direction.title for direction in DIRECTIONS.values()}) == len(DIRECTIONS)
    assert all(direction.meaning for direction in DIRECTIONS.values())
