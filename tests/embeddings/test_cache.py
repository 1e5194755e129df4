import threading
from dataclasses import replace

import pytest

from tests.embeddings.embedding_checks import EmbeddingCounter, assert_equal
from tests.models.test_model import small_model
from tests.notes import Notes
from unibct.data.decoding import Frame
from unibct.data.loader import read_pixels
from unibct.embeddings import extraction, store_plan
from unibct.embeddings.cache import cached_embeddings, embeddings_folder
from unibct.embeddings.extraction import embed_pixel_batches
from unibct.embeddings.stored import StoredEmbeddings


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture(scope="module")
def pixels(glyph_classes, model):
    return read_pixels(glyph_classes, model.input.frame)


def test_a_cache_is_used_completed_and_made_again(model, pixels, tmp_path, monkeypatch):
    folder = tmp_path / "caches" / "plain"
    with monkeypatch.context() as patch:
        counter = EmbeddingCounter(patch)
        fresh = cached_embeddings(model, pixels, folder)
        assert_equal(cached_embeddings(model, pixels, folder), fresh)
        assert counter.images == len(pixels.images)
        changed = replace(pixels, digest="other pixels")
        assert_equal(cached_embeddings(model, changed, folder), fresh)
        assert counter.images == 2 * len(pixels.images)
        vectors = folder / "vectors-000000.npy"
        vectors.write_bytes(vectors.read_bytes()[:-4] + b"ruin")
        assert_equal(cached_embeddings(model, changed, folder), fresh)
        assert counter.images == 3 * len(pixels.images)
    assert_equal(fresh, embed_pixel_batches(model, pixels))


def test_two_runs_may_want_the_same_cache_at_once(model, pixels, tmp_path, monkeypatch):
    results, counter = [], EmbeddingCounter(monkeypatch)

    def run():
        results.append(cached_embeddings(model, pixels, tmp_path / "c"))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    assert counter.images == len(pixels.images)


@pytest.mark.parametrize("flip", [False, True])
def test_a_full_disk_is_said_and_costs_only_what_was_not_written(
    model, pixels, tmp_path, monkeypatch, flip
):
    monkeypatch.setattr(store_plan, "_FEWEST_SHARD_ROWS", 16)
    expected, images = embed_pixel_batches(model, pixels, flip=flip), len(pixels.images)
    counter, notes, write = EmbeddingCounter(monkeypatch), Notes(), extraction.write_shard

    def full(folder, number, *rest):
        if number == 3:
            raise OSError(28, "No space left on device")
        return write(folder, number, *rest)

    monkeypatch.setattr(extraction, "write_shard", full)
    found = cached_embeddings(model, pixels, tmp_path / "c", flip=flip, progress=notes)
    assert_equal(found, expected)
    assert counter.images == images + 16, "the images of one shard"
    assert len(notes.texts) == 1
    assert f"c cannot be written (No space left on device): 48 of {images} embed" in notes.texts[0]
    monkeypatch.setattr(extraction, "write_shard", write)
    assert_equal(cached_embeddings(model, pixels, tmp_path / "c", flip=flip), expected)
    assert counter.images == 2 * images + 16 - 48, "the next run completes the store"


def test_a_place_without_write_permission_is_said(model, glyph_classes, pixels, tmp_path):
    (tmp_path / "file").write_text("no folder")
    notes, others = Notes(), read_pixels(glyph_classes, Frame(16, 16, 1))
    found = cached_embeddings(model, others, tmp_path / "file" / "c", progress=notes)
    assert_equal(found, embed_pixel_batches(model, pixels))  # in the size that the model takes
    assert any(f"0 of {len(pixels.images)} embeddings are there" in text for text in notes.texts)


def test_a_folder_is_named_for_the_model_the_pixels_and_the_view(model, pixels, tmp_path):
    plain = embeddings_folder(tmp_path, model, pixels)
    assert plain == tmp_path / f"embeddings-{model.fingerprint[:12]}-{pixels.digest[:12]}"
    flipped = embeddings_folder(tmp_path, model, pixels, flip=True)
    assert flipped.name == f"{plain.name}-flipped"


def test_stored_embeddings_of_other_images_are_counted(model, pixels, glyph_classes, tmp_path):
    old = StoredEmbeddings("old.npy", embed_pixel_batches(model, pixels))
    some = read_pixels(glyph_classes.select(range(100)), model.input.frame)
    notes = Notes()
    found = cached_embeddings(old, some, tmp_path / "old", progress=notes)
    assert found.ids == some.images.ids
    surplus, first = len(glyph_classes) - 100, glyph_classes.ids[100]
    assert notes.texts[0].startswith(f"old.npy has {surplus} embeddings of none of the 100 images")
    assert repr(first) in notes.texts[0]
