import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.data.decode_counter import DecodeCounter
from tests.distributed.thread_ranks import run_ranks
from tests.embeddings.embedding_checks import EmbeddingCounter, assert_close, assert_equal
from tests.embeddings.random_embeddings import random_embeddings
from tests.models.test_model import small_model
from tests.notes import Notes, show
from unibct import progress
from unibct.data.decoding import Frame
from unibct.data.loader import read_pixels
from unibct.data.readers import open_images
from unibct.data.training_classes import UNKNOWN_CLASSES
from unibct.distributed.ranks import ALONE
from unibct.embeddings import extraction
from unibct.embeddings.extraction import (
    Note,
    StorePlan,
    StoreRun,
    cached_embeddings,
    embed,
    embed_pixel_batches,
    embed_with_models,
    embeddings_folder,
    finite_embeddings,
    is_finished,
    plan_store,
)
from unibct.embeddings.store import (
    open_embeddings,
    save_embeddings,
    write_description,
    write_shard,
)
from unibct.embeddings.stored import StoredEmbeddings
from unibct.errors import UserError
from unibct.files import read_json, write_json
from unibct.models.model import Model


def test_the_image_without_a_finite_embedding_is_named():
    vectors = np.ones((3, 3), dtype=np.float32)
    vectors[1, 0] = np.nan
    diverged = SimpleNamespace(embed_pixels=lambda pixels: vectors[: len(pixels)])
    pixels = np.zeros((3, 4, 4, 1), dtype=np.uint8)
    with pytest.raises(UserError, match="no finite embedding for second"):
        finite_embeddings(diverged, pixels, ("first", "second", "third"))
    assert finite_embeddings(diverged, pixels[:1], ("first",)).shape == (1, 3)


PLAN = StorePlan("model", "pixels", 5, flip=False, dtype="float32", shard_rows=2)


def write(folder, number, rows):
    labels = np.zeros(len(rows), int)
    ids = [f"{row}" for row in rows]
    return write_shard(folder, number, rows.start, np.ones((len(rows), 3)), labels, ids)


def test_shards_divide_the_rows():
    assert PLAN.shard_ranges == [range(0, 2), range(2, 4), range(4, 5)]
    assert replace(PLAN, images=0).shard_ranges == []
    with pytest.raises(UserError, match="shard_rows must be at least 1, not -1"):
        replace(PLAN, shard_rows=-1)
    with pytest.raises(UserError, match="unknown dtype 'int8'"):
        replace(PLAN, dtype="int8")


def test_the_key_changes_with_all_that_decides_the_files():
    changes = ("fingerprint", "m"), ("pixel_digest", "p"), ("flip", True), ("dtype", "float16")
    plans = [PLAN, replace(PLAN, shard_rows=3)]
    plans += [replace(PLAN, **{name: value}) for name, value in changes]
    assert len({plan.key for plan in plans}) == len(plans)
    # Stores of earlier versions keep their keys.
    assert PLAN.key == "8b541800647dfede0fd370767b6657302c32aca891c765030638d5d8ac356d7d"


def test_other_rows_under_the_same_name_are_another_store():
    pixels = SimpleNamespace(digest="pixels", images=range(3))
    first = random_embeddings(3)
    turned = first.changed(vectors=np.asarray(first.vectors)[::-1], fingerprint=first.fingerprint)
    keys = [plan_store(StoredEmbeddings("old.npy", e), pixels).key for e in (first, first, turned)]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    ("images", "shard_rows"), [(10, 1024), (65_537, 1025), (5_000_000, 65_536)]
)
def test_there_are_enough_shards_for_many_processes(images, shard_rows):
    model = SimpleNamespace(fingerprint="model")
    pixels = SimpleNamespace(digest="pixels", images=range(images))
    assert plan_store(model, pixels).shard_rows == shard_rows
    assert plan_store(model, pixels, shard_rows=7).shard_rows == 7


def planned(folder, plan=PLAN, **options):
    return StoreRun(None, None, "pixels", folder, plan, **options)


def test_notes_tell_which_shards_are_done(tmp_path):
    run, other = planned(tmp_path), planned(tmp_path, replace(PLAN, flip=True))
    planned(tmp_path / "new").require_own_folder()
    shards = []
    for number, rows in enumerate(PLAN.shard_ranges):
        assert not run.is_done(number)
        shards.append(write(tmp_path, number, rows))
        assert not run.is_done(number)
        write_json(run.note_path(number), {"key": PLAN.key, "shard": asdict(shards[-1])})
        assert run.is_done(number), "a note of an earlier version"
        Note(PLAN.key, shards[-1]).write(run.note_path(number))
        assert run.is_done(number)
        assert not other.is_done(number)
        assert not run.is_done(number, "the stamp of other files")
    assert [Note.read(run.note_path(number)).shard for number in range(3)] == shards
    run.require_own_folder()
    with pytest.raises(UserError, match="unfinished embeddings by another model"):
        other.require_own_folder()
    (tmp_path / "ids-000001.txt").write_text("changed")
    assert not run.is_done(1)
    (tmp_path / "shard-000002.json").write_text("[]")
    with pytest.raises(UserError, match=r"shard-000002.json cannot be understood; remove"):
        Note.read(run.note_path(2))


def test_a_store_is_finished_when_its_description_has_the_key(tmp_path):
    assert not is_finished(tmp_path, PLAN)
    form = {"dim": 3, "dtype": "float32", "fingerprint": "model", "source": PLAN.key}
    classes = {"class_names": ["a"], "class_source": None, "training_classes": UNKNOWN_CLASSES}
    write_description(tmp_path, [write(tmp_path, 0, range(2))], **form, **classes)
    assert is_finished(tmp_path, PLAN)
    assert not is_finished(tmp_path, replace(PLAN, dtype="float16"))
    with pytest.raises(UserError, match="exists already"):
        planned(tmp_path).require_own_folder()


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture
def folder(photo_folder, tmp_path, monkeypatch):
    """A copy of the photos, with an empty cache, and no memory for their pixels."""
    monkeypatch.setenv("UNIBCT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UNIBCT_PIXEL_MEMORY", "0")
    return shutil.copytree(photo_folder, tmp_path / "photos")


def photo_store(model, folder, out, *, skip_bad=False, **options):
    images = open_images(folder, skip_bad=skip_bad)
    return embed(model, images, out=out, shard_rows=20, **options)


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_each_image_is_decoded_once_and_the_store_is_the_same(model, folder, tmp_path, monkeypatch):
    counter, images = DecodeCounter(monkeypatch), open_images(folder)
    store = photo_store(model, folder, tmp_path / "e")
    assert counter.taken() == len(images)
    photo_store(model, folder, tmp_path / "e")
    assert counter.taken() == 0, "it was finished"
    photo_store(model, folder, tmp_path / "again")
    assert counter.taken() == len(images), "it was checked"
    monkeypatch.delenv("UNIBCT_PIXEL_MEMORY")
    monkeypatch.setenv("UNIBCT_CACHE", str(tmp_path / "other"))
    photo_store(model, folder, tmp_path / "kept")
    assert counter.taken() == len(images)
    photo_store(model, folder, tmp_path / "kept")
    assert counter.taken() == 0, "it was finished"
    assert files_of(tmp_path / "e") == files_of(tmp_path / "kept") == files_of(tmp_path / "again")
    assert_equal(store, open_embeddings(tmp_path / "kept", verify=True))


def test_a_changed_image_is_found_in_a_finished_store(model, folder, tmp_path):
    store = photo_store(model, folder, tmp_path / "e")
    (folder / store.ids[3]).write_bytes((folder / store.ids[11]).read_bytes())
    with pytest.raises(UserError, match="exists already"):
        photo_store(model, folder, tmp_path / "e")


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [1, 4])
@pytest.mark.parametrize("change", [False, True])
def test_a_stopped_pass_goes_on_and_embeds_changed_files_again(
    model, folder, tmp_path, monkeypatch, stop_at, change
):
    write, calls = extraction.write_shard, iter(range(stop_at))

    def stopping(*arguments):
        if next(calls) == stop_at - 1:
            raise KeyboardInterrupt
        return write(*arguments)

    images, counter = open_images(folder), DecodeCounter(monkeypatch)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(extraction, "write_shard", stopping)
        photo_store(model, folder, tmp_path / "e")
    counter.taken()
    done = 20 * (stop_at - 1)
    if change and done:
        (folder / images.ids[3]).write_bytes((folder / images.ids[11]).read_bytes())
        done -= 20
    photo_store(model, folder, tmp_path / "e")
    assert counter.taken() == len(images) - done
    assert_close(open_embeddings(tmp_path / "e", verify=True), embed(model, images))
    assert not list((tmp_path / "e").glob("checked-*"))


def test_another_model_is_refused(model, folder, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(StoreRun, "_complete", stop)
        photo_store(model, folder, tmp_path / "e")
    with pytest.raises(UserError, match="unfinished embeddings by another model"):
        photo_store(small_model(seed=5), folder, tmp_path / "e")
    (tmp_path / "e" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="exists already"):
        photo_store(model, folder, tmp_path / "e")


def stop(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.slow
def test_a_run_killed_at_the_very_end_goes_on(model, folder, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(extraction, "sweep", stop)
        photo_store(model, folder, tmp_path / "e")
    counter = DecodeCounter(monkeypatch)
    store = photo_store(model, folder, tmp_path / "e")
    assert counter.taken() == 0
    assert_close(store, embed(model, open_images(folder)))
    assert not list((tmp_path / "e").glob("checked-*"))


@pytest.mark.slow
@pytest.mark.parametrize("whole_class", [False, True])
def test_unreadable_images_are_named_and_leaving_them_out_costs_no_second_pass(
    model, folder, tmp_path, monkeypatch, whole_class
):
    images = open_images(folder)
    rows = np.flatnonzero(images.labels == 1) if whole_class else [0, 25, len(images) - 1]
    for row in rows:
        (folder / images.ids[row]).write_bytes(b"no image")
    with pytest.raises(UserError, match=f"{len(rows)} unreadable images: .*skip_bad"):
        photo_store(model, folder, tmp_path / "e")
    counter = DecodeCounter(monkeypatch)
    store = photo_store(model, folder, tmp_path / "e", skip_bad=True)
    assert counter.taken() <= len(rows)
    expected = embed(model, replace(images, skip_bad=True))
    stored = open_embeddings(tmp_path / "e", verify=True)
    assert (stored.ids, stored.class_names) == (expected.ids, expected.class_names)
    assert np.array_equal(stored.labels, expected.labels)
    assert np.allclose(np.asarray(stored.vectors), expected.vectors, atol=1e-6)
    assert len(store) == len(images) - len(rows)
    counter.taken()
    photo_store(model, folder, tmp_path / "e", skip_bad=True)
    assert counter.taken() <= len(rows), "it was finished"


def test_a_shard_without_readable_images(model, folder, tmp_path):
    images = open_images(folder)
    for row in range(20, 40):
        (folder / images.ids[row]).write_bytes(b"no image")
    store = photo_store(model, folder, tmp_path / "e", skip_bad=True)
    assert store.ids == (*images.ids[:20], *images.ids[40:])
    assert np.asarray(store.vectors).shape[0] == len(images) - 20
    assert store.vectors[[19, 20]].shape[0] == 2
    for row in range(len(images)):
        (folder / images.ids[row]).write_bytes(b"no image")
    with pytest.raises(UserError, match="not one of its"):
        photo_store(model, folder, tmp_path / "none", skip_bad=True)


def test_several_processes_make_one_pass(model, folder, tmp_path, monkeypatch):
    images, counter = open_images(folder), DecodeCounter(monkeypatch)
    (folder / images.ids[30]).write_bytes(b"no image")
    results = run_ranks(3, lambda ranks: photo_store(model, folder, tmp_path / "e", ranks=ranks))
    assert all("1 unreadable image: " in str(error) for error in results)
    options = {"out": tmp_path / "e", "skip_bad": True}
    stores = run_ranks(3, lambda ranks: photo_store(model, folder, ranks=ranks, **options))
    assert counter.taken() <= len(images) + 3
    assert {len(store) for store in stores} == {len(images) - 1}
    assert read_json(tmp_path / "e" / "embeddings.json")["images"] == len(images) - 1


@pytest.fixture(scope="module")
def pixels(glyph_classes, model):
    return read_pixels(glyph_classes, model.input.frame)


def stored(model, pixels, folder, *, ranks=ALONE, **plan):
    plan = plan_store(model, pixels, **plan)
    return StoreRun(model, pixels.images, pixels, folder, plan, ranks).run()


def test_round_trip(model, glyph_classes, tmp_path):
    fresh = embed(model, glyph_classes)
    save_embeddings(fresh, tmp_path / "emb")
    opened = open_embeddings(tmp_path / "emb")
    assert_equal(opened, fresh)
    assert np.allclose(np.linalg.norm(opened.vectors, axis=1), 1, atol=1e-5)
    assert (opened.ids, opened.class_names) == (glyph_classes.ids, glyph_classes.class_names)


@pytest.mark.parametrize("flip", [False, True])
def test_a_store_is_what_is_made_in_memory(model, pixels, tmp_path, flip):
    store = stored(model, pixels, tmp_path / "e", flip=flip, shard_rows=20)
    assert_close(store, embed_pixel_batches(model, pixels, flip=flip))
    assert_equal(open_embeddings(tmp_path / "e", verify=True), store)
    names = {path.name.split("-")[0] for path in (tmp_path / "e").iterdir()}
    described = {"classes.txt", "training_classes.txt", "embeddings.json"}
    assert names == {"vectors", "labels", "ids"} | described


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_several_processes_make_one_store(model, pixels, tmp_path, world):
    stores = run_ranks(
        world, lambda ranks: stored(model, pixels, tmp_path / "e", shard_rows=20, ranks=ranks)
    )
    for store in stores:
        assert_close(store, embed_pixel_batches(model, pixels))


@pytest.mark.slow
@pytest.mark.parametrize("first_sees", [False, True])
@pytest.mark.parametrize("through", ["extraction", "cache"])
def test_all_processes_see_the_disk_as_the_first_does(
    through, first_sees, model, pixels, tmp_path, monkeypatch
):
    if first_sees:
        stored(model, pixels, tmp_path / "e", shard_rows=20)
    seen = threading.local()

    def sees(*arguments):
        return is_finished(*arguments) if seen.rank == 0 else not first_sees

    monkeypatch.setattr(extraction, "is_finished", sees)

    def run(ranks):
        seen.rank = ranks.rank
        if through == "cache":
            return cached_embeddings(model, pixels, tmp_path / "e", ranks=ranks)
        return stored(model, pixels, tmp_path / "e", shard_rows=20, ranks=ranks)

    for store in run_ranks(2, run):
        assert_close(store, embed_pixel_batches(model, pixels))


def test_a_folder_that_the_first_process_refuses_is_refused_by_all(model, pixels, tmp_path):
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "thesis.txt").write_text("years of work")
    for error in run_ranks(2, lambda ranks: stored(model, pixels, tmp_path / "e", ranks=ranks)):
        assert isinstance(error, UserError)
        assert "exists already" in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [1, 3])
def test_a_stopped_run_goes_on_after_its_last_shard(
    model, glyph_classes, pixels, tmp_path, monkeypatch, stop_at
):
    options = {"shard_rows": 20}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        EmbeddingCounter(patch, stop_at)
        embed(model, glyph_classes, out=tmp_path / "e", **options)
    assert not (tmp_path / "e" / "embeddings.json").exists()
    with monkeypatch.context() as patch:
        counter = EmbeddingCounter(patch)
        store = embed(model, glyph_classes, out=tmp_path / "e", **options)
        assert counter.images == len(glyph_classes) - 20 * (stop_at - 1)
        embed(model, glyph_classes, out=tmp_path / "e", **options)
        assert counter.images == len(glyph_classes) - 20 * (stop_at - 1), "it was finished"
    assert_close(store, embed_pixel_batches(model, pixels))


def test_models_are_never_mixed(model, pixels, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        EmbeddingCounter(patch, 3)
        stored(model, pixels, tmp_path / "e", shard_rows=20)
    for other in ({"flip": True}, {"dtype": "float16"}):
        with pytest.raises(UserError, match="unfinished embeddings by another model"):
            stored(model, pixels, tmp_path / "e", shard_rows=20, **other)
    shard = tmp_path / "e" / "vectors-000001.npy"
    shard.write_bytes(shard.read_bytes()[:-4] + b"ruin")
    again = stored(model, pixels, tmp_path / "e", shard_rows=20)
    assert_close(again, embed_pixel_batches(model, pixels))
    with pytest.raises(UserError, match="exists already"):
        stored(model, pixels, tmp_path / "e", flip=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="exists already"):
        stored(model, pixels, tmp_path / "mine")


def test_an_embedding_that_is_not_finite_is_named(model, pixels, tmp_path, monkeypatch):
    real = Model.embed_pixels

    def broken(model, batch):
        vectors = real(model, batch).copy()
        vectors[5, 0] = np.nan
        return vectors

    monkeypatch.setattr(Model, "embed_pixels", broken)
    with pytest.raises(UserError, match=f"no finite .* for {re.escape(pixels.images.ids[5])}"):
        stored(model, pixels, tmp_path / "e")


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
    counter = EmbeddingCounter(monkeypatch)
    with ThreadPoolExecutor(3) as pool:
        found = pool.map(lambda _: cached_embeddings(model, pixels, tmp_path / "c"), range(3))
        first, second, third = (np.asarray(embeddings.vectors) for embeddings in found)
    assert np.array_equal(first, second)
    assert np.array_equal(first, third)
    assert counter.images == len(pixels.images)


@pytest.mark.parametrize("flip", [False, True])
def test_a_full_disk_is_said_and_costs_only_what_was_not_written(
    model, pixels, tmp_path, monkeypatch, flip
):
    monkeypatch.setattr(extraction, "_FEWEST_SHARD_ROWS", 16)
    expected, images = embed_pixel_batches(model, pixels, flip=flip), len(pixels.images)
    counter, notes, write = EmbeddingCounter(monkeypatch), Notes(), extraction.write_shard

    def full(folder, number, *rest):
        if number == 3:
            raise OSError(28, "No space left on device")
        return write(folder, number, *rest)

    monkeypatch.setattr(extraction, "write_shard", full)
    with progress.shown(notes):
        found = cached_embeddings(model, pixels, tmp_path / "c", flip=flip)
    assert_equal(found, expected)
    assert counter.images == images + 16, "the images of one shard"
    assert len(notes.texts) == 1
    assert f"c cannot be written (No space left on device): 48 of {images} embed" in notes.texts[0]
    monkeypatch.setattr(extraction, "write_shard", write)
    assert_equal(cached_embeddings(model, pixels, tmp_path / "c", flip=flip), expected)
    assert counter.images == 2 * images + 16 - 48, "the next run completes the store"


def test_a_place_without_write_permission_is_said(model, glyph_classes, pixels, tmp_path):
    (tmp_path / "file").write_text("no folder")
    notes, others = show(Notes()), read_pixels(glyph_classes, Frame(16, 16, 1))
    found = cached_embeddings(model, others, tmp_path / "file" / "c")
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
    notes, found = show(Notes()), cached_embeddings(old, some, tmp_path / "old")
    assert found.ids == some.images.ids
    surplus, first = len(glyph_classes) - 100, glyph_classes.ids[100]
    assert notes.texts[0].startswith(f"old.npy has {surplus} embeddings of none of the 100 images")
    assert repr(first) in notes.texts[0]


def test_images_are_decoded_once_for_all_models_that_take_them_alike(
    model, folder, monkeypatch, tmp_path
):
    """In memory, and too large for it: then once to check them, and once for all models."""
    other = small_model(seed=5)
    cropping = replace(model, input=replace(model.input, fit="crop"))
    images, counter = open_images(folder), DecodeCounter(monkeypatch)
    stored = StoredEmbeddings("old.npy", embed(other, images))
    counter.taken()
    embed_with_models([model, other], images)
    assert counter.taken() == len(images), "they were checked before"
    monkeypatch.setenv("UNIBCT_CACHE", str(tmp_path / "empty"))
    monkeypatch.delenv("UNIBCT_PIXEL_MEMORY")
    models = [model, cropping, stored, other]
    found = embed_with_models(models, images)
    assert counter.taken() == 2 * len(images), "in two forms"
    assert [one.fingerprint for one in found] == [one.fingerprint for one in models]
    for one, embeddings in zip(models, found, strict=True):
        assert_equal(embeddings, embed(one, images))


def test_arrays_of_pixels_are_embedded_too(model, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 9, 3), dtype=np.uint8)
    found = embed(model, images)
    assert found.ids == ("0", "1", "2", "3", "4")
    assert (found.labels.tolist(), found.class_names) == ([-1] * 5, ())
    assert np.array_equal(found.vectors, model.embed(images))
    assert_equal(embed(model, images, out=tmp_path / "e", shard_rows=2), found)
    assert (tmp_path / "e" / "vectors-000002.npy").is_file()
    with pytest.raises(UserError, match="the text 'photos': open it first with open_images"):
        embed(model, "photos")
    with pytest.raises(UserError, match="mine knows images by their ids"):
        embed(StoredEmbeddings("mine", found), images)
