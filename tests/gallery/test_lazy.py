from tests.gallery.toys import toy_images
from unibct.gallery.gallery import Gallery
from unibct.gallery.lazy import remake_hits
from unibct.gallery.sources import open_source


def hits(gallery):
    return [answer.hits for answer in gallery.search(toy_images(per_class=1, first=50), k=2)]


def test_only_found_rows_with_images_are_embedded_again(upgraded):
    found = hits(upgraded)
    ids = {hit.id for row in found for hit in row}
    some = toy_images(classes=3)
    made = remake_hits(upgraded.folder, found, open_source(some))
    assert made == len(ids & set(some.ids))
    own = upgraded.folder.state.standing.searching
    assert set(next(upgraded.folder.engine.scan(own)).ids) == ids & set(some.ids)
    assert (
        remake_hits(upgraded.folder, hits(upgraded), open_source(toy_images(per_class=1, first=90)))
        == 0
    )


def test_while_another_process_writes_the_search_goes_on(upgraded):
    other = Gallery(upgraded.folder.path)
    with upgraded.folder.writing():
        assert remake_hits(other.folder, hits(other), open_source(toy_images())) == 0
