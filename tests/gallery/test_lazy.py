from tests.gallery.toys import toy_images
from unibct.gallery.gallery import Gallery
from unibct.gallery.lazy import remake_hits
from unibct.gallery.sources import open_source
from unibct.gallery.state import ROLLBACK


def hits(gallery):
    return [answer.hits for answer in gallery.search(toy_images(per_class=1, first=50), k=2)]


def test_only_found_rows_with_images_are_embedded_again(upgraded):
    own = upgraded.folder.state.standing.searching
    found = hits(upgraded)
    ids = {hit.id for row in found for hit in row}
    some = toy_images(classes=3)
    made = remake_hits(upgraded.folder, own, found, open_source(some))
    assert made == len(ids & set(some.ids))
    assert set(next(upgraded.folder.engine.scan(own)).ids) == ids & set(some.ids)
    others = open_source(toy_images(per_class=1, first=90))
    assert remake_hits(upgraded.folder, own, hits(upgraded), others) == 0


def test_while_another_process_writes_the_search_goes_on(upgraded):
    other = Gallery(upgraded.folder.path)
    with upgraded.folder.writing():
        searching = other.folder.state.standing.searching
        assert remake_hits(other.folder, searching, hits(other), open_source(toy_images())) == 0


def test_after_a_killed_rollback_no_row_is_embedded_by_the_model_that_no_longer_searches(upgraded):
    upgraded.folder.save(upgraded.folder.state.begun(ROLLBACK, to=3))
    queries = toy_images(per_class=1, first=50)
    upgraded.search(queries, k=2, lazy_images=toy_images())
    assert upgraded.folder.state.searching.name.endswith("old_model")
    assert len(upgraded.search(queries, k=100)[0].hits) == 48
