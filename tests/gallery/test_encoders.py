import pytest

from unibct.errors import UserError
from unibct.gallery.encoders import ENCODERS, describe_encoders
from unibct.gallery.search_request import SearchRequest


def test_a_request_takes_every_name_of_the_table_and_no_other():
    for name in ENCODERS:
        assert SearchRequest(encoders=name).encoders == name
        assert f"{name} (" in describe_encoders()
    with pytest.raises(UserError, match="unknown encoders 'old'; choose new, two, blend"):
        SearchRequest(encoders="old")
