import pytest

from tests.gallery.toys import toy_images
from unibct.errors import UserError
from unibct.gallery.search_request import ENCODERS, SearchRequest, describe_encoders


def test_a_request_takes_every_name_of_the_table_and_no_other():
    for name in ENCODERS:
        assert SearchRequest(encoders=name).encoders == name
        assert f"{name} (" in describe_encoders()
    with pytest.raises(UserError, match="unknown encoders 'old'; choose new, two, blend"):
        SearchRequest(encoders="old")


QUERIES = toy_images(per_class=1, first=50)


@pytest.mark.parametrize(
    "wrong",
    [
        {"k": 0},
        {"encoders": "three"},
        {"alpha": 2, "encoders": "blend"},
        {"alpha": 0.3},
        {"threshold": 0.1, "far": 0.1},
        {"alpha": float("nan"), "encoders": "blend"},
        {"threshold": float("nan")},
    ],
)
def test_requests_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UserError):
        SearchRequest(**wrong)
