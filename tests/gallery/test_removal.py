import pytest

from tests.gallery.toys import toy_images
from unibct.errors import UserError
from unibct.gallery.gate import known_queries


def test_removing_forgets_known_queries_of_the_rows(toy_gallery):
    known = [query.id for query in known_queries(toy_gallery.folder.path)]
    toy_gallery.remove(known[:2])
    left = {query.id for query in known_queries(toy_gallery.folder.path)}
    assert left == set(known[2:])
    assert toy_gallery.add(toy_images()).added == 2


def test_an_unknown_id_removes_nothing(toy_gallery):
    with pytest.raises(UserError, match="1 of 2 ids are no rows of this gallery, first 'nobody'"):
        toy_gallery.remove(["c0/0", "nobody"])
    assert toy_gallery.status().as_json()["rows"] == 48
