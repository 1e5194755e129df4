from contextlib import closing

import numpy as np
import pytest

from tests.gallery.toys import NEW, NEWEST, toy_certificate, toy_images, written
from unibct.data.image_set import ImageSet
from unibct.errors import UserError
from unibct.gallery.page.shown_gallery import Query, ShownGallery
from unibct.gallery.search_request import SearchRequest

QUERIES = toy_images(classes=6, per_class=1, first=60)
REQUEST = SearchRequest(k=7)


def hits_of(column) -> list[tuple[str, float, str]]:
    return [(hit.id, round(hit.score, 6), hit.row) for hit in column.hits]


def found_by(gallery, image_id: str, **settings) -> list[tuple[str, float, str]]:
    queries = QUERIES.select([QUERIES.position[image_id]])
    hits = gallery.search(queries, k=7, **settings)[0].hits
    return [(hit.id, round(hit.score, 6), hit.row) for hit in hits]


def shown_by(gallery, image_id: str, request: SearchRequest = REQUEST):
    with closing(ShownGallery(gallery.folder.path, toy_images())) as shown:
        return shown.search(Query(QUERIES.read(image_id)), request)


def upgrade(gallery, model: str, folder) -> None:
    kinds, new = gallery.folder.state.kinds, gallery.folder.opener.open(model).fingerprint
    gallery.upgrade(model, [written(toy_certificate(kind, new), folder) for kind in kinds])


def test_one_column_before_an_upgrade(toy_gallery):
    answer = shown_by(toy_gallery, "c2/60")
    assert [column.role for column in answer.columns] == ["now"]
    assert hits_of(answer.columns[0]) == found_by(toy_gallery, "c2/60")
    assert answer.columns[0].hits[0].has_image
    assert answer.query_label is None


def test_old_and_new_results_side_by_side(toy_gallery, tmp_path):
    before = found_by(toy_gallery, "c3/60")
    upgrade(toy_gallery, NEW, tmp_path)
    for share in (None, 0.5, 1.0):  # however many rows are embedded again
        if share is not None:
            toy_gallery.backfill(toy_images(), share=share)
        old, new = shown_by(toy_gallery, "c3/60").columns
        assert (old.role, new.role) == ("before", "now")
        assert hits_of(old) == before
        assert hits_of(new) == found_by(toy_gallery, "c3/60")
        assert old.problem == ""
        blend = SearchRequest(k=7, encoders="blend", alpha=0.3)
        old, new = shown_by(toy_gallery, "c3/60", blend).columns
        assert hits_of(old) == before, "the old model has no blend"
        assert hits_of(new) == found_by(toy_gallery, "c3/60", encoders="blend", alpha=0.3)
    toy_gallery.rollback()
    (only,) = shown_by(toy_gallery, "c3/60").columns
    assert hits_of(only) == before


def test_a_second_upgrade_shows_the_model_before_it(upgraded, tmp_path):
    upgraded.backfill(toy_images(), share=0.5)
    before = found_by(upgraded, "c3/60")
    upgrade(upgraded, NEWEST, tmp_path)
    upgraded.backfill(toy_images())  # no row of the two older models is live any more
    old, new = shown_by(upgraded, "c3/60").columns
    assert sorted(hits_of(old)) == sorted(before)
    assert {row for _, _, row in hits_of(new)} == {"own"}


def test_deleted_vectors_are_mentioned(upgraded):
    upgraded.backfill(toy_images(), share=0.5)
    upgraded.finish()
    old, new = shown_by(upgraded, "c3/60", SearchRequest(k=48)).columns
    assert "24 old vectors are deleted" in old.problem
    assert len(old.hits) == 24
    assert len(new.hits) == 48


def test_encoders_and_old_scores_are_those_of_the_new_model(upgraded):
    upgraded.backfill(toy_images(), share=0.5)
    request = SearchRequest(k=7, encoders="two")
    old, new = shown_by(upgraded, "c1/60", request).columns
    assert hits_of(new) == found_by(upgraded, "c1/60", encoders="two")
    assert hits_of(old) == hits_of(shown_by(upgraded, "c1/60").columns[0])


def test_a_rate_without_a_threshold_is_a_problem_of_one_column(upgraded):
    shown = ShownGallery(upgraded.folder.path)
    assert shown.status().fars == [0.1, 0.01]
    old, new = shown.search(Query(QUERIES.read("c1/60")), SearchRequest(far=0.1)).columns
    assert new.hits
    assert old.hits
    with pytest.raises(UserError, match="no threshold for the false accept rate 0\\.5"):
        shown.search(Query(QUERIES.read("c1/60")), SearchRequest(far=0.5))


def test_forced_rows_have_no_rates(toy_gallery):
    toy_gallery.upgrade(NEW, force=True)
    shown = ShownGallery(toy_gallery.folder.path)
    assert shown.status().fars == []
    assert shown.status().forced == ["old_model"]
    assert shown.search(Query(QUERIES.read("c1/60")), REQUEST).forced
    (certificate,) = shown.certificates().certificates
    assert certificate.verdict is None


def test_only_images_of_the_set_are_read(toy_gallery):
    shown = ShownGallery(toy_gallery.folder.path, toy_images())
    query = shown.query("c4/1")
    assert (query.id, query.label) == ("c4/1", "c4")
    np.testing.assert_array_equal(query.pixels, toy_images().read("c4/1"))
    for image_id in ("../state.json", "/etc/passwd", "c4", ""):
        with pytest.raises(KeyError, match="is not an image of toys"):
            shown.pixels(image_id)
    assert [s.label for s in shown.samples(3, 0)] == [s.id[:2] for s in shown.samples(3, 0)]
    assert shown.samples(3, 0) != shown.samples(3, 1)
    assert len(shown.samples(100, 0)) == 48
    blind = ShownGallery(toy_gallery.folder.path)
    assert blind.samples(3, 0) == []
    images = toy_images(per_class=1)
    loose = ImageSet("loose", images.ids, images.labels * 0, ("",), images.read)
    flat = ShownGallery(toy_gallery.folder.path, loose)
    assert {sample.label for sample in flat.samples(3, 0)} == {None}
    flat.close()
    with pytest.raises(KeyError, match="serve it with the images"):
        blind.pixels("c4/1")


def test_vectors_are_no_pictures(toy_gallery):
    vectors = ImageSet(
        "v", ("a",), np.zeros(1, dtype=np.int64), ("c",), lambda i: None, vector_dim=4
    )
    with pytest.raises(UserError, match="v has vectors"):
        ShownGallery(toy_gallery.folder.path, vectors)


def test_a_damaged_certificate_is_named_beside_the_others(upgraded):
    (held,) = (upgraded.folder.path / "certificates").iterdir()
    held.write_text(held.read_text()[:-40])
    with closing(ShownGallery(upgraded.folder.path, toy_images())) as shown:
        (answer,) = shown.certificates().certificates
    assert answer.verdict is None
    assert held.name in answer.summary
