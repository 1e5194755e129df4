import pytest

from unibct.errors import UserError
from unibct.methods.known_classes import allow_any_classes, require_known_classes


def test_new_classes_must_be_among_the_old_ones():
    require_known_classes(("a", "b", "c"), ("c", "a"))
    with pytest.raises(UserError, match="does not know 2 of the 3 new classes, first 'd'"):
        require_known_classes(("a", "b"), ("e", "a", "d"))


def test_most_methods_take_any_classes():
    allow_any_classes((), ("a",))
