import numpy as np
import pytest

from tests.gallery.toys import NEW, NEWEST, OLD, toy_certificate, toy_images, written
from unibct.embedders.table import Opening
from unibct.embeddings.extraction import embed_images
from unibct.errors import UserError
from unibct.maps.folder import save_map
from unibct.training.mapped_model import adapt_embedders


def live(gallery):
    return list(gallery.status().live.values())


def test_named_rows_only(upgraded):
    result = upgraded.backfill(toy_images(), ids=["c0/0", "c5/7"])
    assert (result.rows, live(upgraded)) == (2, [46, 2])
    with pytest.raises(UserError, match="'nobody' is no row"):
        upgraded.backfill(toy_images(), ids=["nobody"])


def test_rows_without_an_image_are_counted_and_named(upgraded):
    result = upgraded.backfill(toy_images(classes=2))
    assert (result.rows, result.missing, result.first_missing) == (16, 32, "c2/0")
    with pytest.raises(UserError, match="none of the 32 rows"):
        upgraded.backfill(toy_images(per_class=1, first=90))


def test_rows_without_an_image_are_not_named_if_the_share_is_reached_without_them(upgraded):
    result = upgraded.backfill(toy_images(classes=4), share=0.25)
    assert (result.rows, result.missing, result.first_missing) == (12, 0, "")


def test_other_images_under_the_same_ids_are_refused(upgraded):
    with pytest.raises(UserError, match="is another image"):
        upgraded.backfill(toy_images(seed=1))
    assert live(upgraded) == [48, 0]


def test_embeddings_by_the_searching_model_serve_as_well(upgraded):
    opening = Opening()
    with pytest.raises(UserError, match=r"need embeddings by .*new_model"):
        upgraded.backfill(embed_images(opening.open(OLD), toy_images()))
    upgraded.backfill(embed_images(opening.open(NEW), toy_images()))
    assert live(upgraded) == [0, 48]


@pytest.mark.parametrize("factor", [3, np.nan])
def test_vectors_that_no_search_finds_are_refused(upgraded, factor):
    rows = embed_images(Opening().open(NEW), toy_images())
    bad = rows.changed(vectors=np.asarray(rows.vectors) * factor, fingerprint=rows.fingerprint)
    with pytest.raises(UserError, match=r"the vector of .* nothing of this batch was written"):
        upgraded.backfill(bad)
    assert live(upgraded) == [48, 0]


def test_the_curve_of_known_queries_is_noted(upgraded, monkeypatch):
    monkeypatch.setattr("unibct.gallery.backfill._BATCH", 12)
    curve = upgraded.backfill(toy_images()).curve
    assert [share for share, _ in curve] == [0, 0.25, 0.5, 0.75, 1]
    assert all(found == 1 for _, found in curve)
    assert upgraded.status().as_json()["steps"][-1]["curve"]


def test_a_backfill_after_which_nothing_is_found_is_undone(upgraded):
    rows = embed_images(Opening().open(NEW), toy_images())
    backwards = rows.changed(vectors=-np.asarray(rows.vectors), fingerprint=rows.fingerprint)
    with pytest.raises(UserError, match="the backfill was undone"):
        upgraded.backfill(backwards)
    assert live(upgraded) == [48, 0]
    assert upgraded.verify() == []


def test_without_images_a_forward_map_makes_a_third_kind_of_row(upgraded, forward_map):
    result = upgraded.backfill(map_folder=forward_map)
    assert (result.rows, result.rows_in_space) == (48, 48)
    printed = result.as_json()
    keys = "step rows own total missing first_missing skipped paused curve share"
    assert (list(printed), printed["own"]) == (keys.split(), 48)
    status = upgraded.status().as_json()
    assert list(status["models"].values()) == [0, 0, 48]
    assert list(status["row_types"].values()) == ["older", "own", "mapped"]
    hits = upgraded.search(toy_images(per_class=1, first=50), k=3)[0].hits
    assert {hit.row for hit in hits} == {"mapped"}
    assert upgraded.backfill(toy_images(), share=0.5).rows == 24, "images are better than a map"
    assert live(upgraded) == [0, 24, 24]
    upgraded.abort()
    assert live(upgraded) == [0, 0, 48]
    upgraded.rollback()
    assert live(upgraded) == [48, 0, 0]
    assert upgraded.verify() == []


def newest_map(old, folder):
    """A map of the rows of an older model into the space of the newest one."""
    opening = Opening()
    images = toy_images(per_class=30, first=200)
    models = opening.open(NEWEST), opening.open(old)
    fitted = adapt_embedders(*models, images, direction="forward", kind="linear")
    save_map(fitted, folder)
    return folder


def test_the_share_of_a_map_counts_rows_that_other_models_made(upgraded_twice, tmp_path):
    forward = newest_map(OLD, tmp_path / "newest")
    assert live(upgraded_twice) == [48, 6, 0]
    half = upgraded_twice.backfill(map_folder=forward, share=0.5)
    assert (half.rows, half.rows_in_space, half.total) == (27, 27, 54)
    assert upgraded_twice.backfill(map_folder=forward, share=0.5).rows == 0
    assert upgraded_twice.backfill(map_folder=forward).rows == 21
    assert upgraded_twice.backfill(toy_images(per_class=30), share=0.5).rows == 27


def test_a_map_of_rows_that_the_gallery_does_not_have_is_refused(toy_gallery, tmp_path):
    old, newest = (Opening().open(name).fingerprint for name in (OLD, NEWEST))
    toy_gallery.upgrade(NEWEST, [written(toy_certificate(old, newest), tmp_path)])
    with pytest.raises(UserError, match=rf"maps rows of model .* this gallery has none.*{old}"):
        toy_gallery.backfill(map_folder=newest_map(NEW, tmp_path / "newest"))


def test_a_map_into_another_space_is_refused(toy_gallery, forward_map):
    with pytest.raises(UserError, match="does not lead into the space"):
        toy_gallery.backfill(map_folder=forward_map)


def test_a_share_lies_between_0_and_1(upgraded):
    for share in (0, -1, 1.5):
        with pytest.raises(UserError, match="share"):
            upgraded.backfill(toy_images(), share=share)
    with pytest.raises(UserError, match="a share has no effect on named rows"):
        upgraded.backfill(toy_images(), share=0.5, ids=["c0/0"])
    with pytest.raises(UserError, match="images of the rows, or a map"):
        upgraded.backfill()
