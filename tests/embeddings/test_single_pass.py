import shutil

import numpy as np
import pytest

from tests.data.decode_counter import DecodeCounter
from tests.distributed.thread_ranks import run_ranks
from tests.embeddings.embedding_checks import assert_close, assert_equal
from tests.models.test_model import small_model
from unibct.data.readers.table import open_images
from unibct.embeddings import single_pass
from unibct.embeddings.extraction import embed_images, embed_images_to_store
from unibct.embeddings.folder import open_embeddings
from unibct.errors import UserError
from unibct.files import read_json


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture
def folder(photo_folder, tmp_path, monkeypatch):
    """A copy of the photos, with an empty cache, and no memory for their pixels."""
    monkeypatch.setenv("UNIBCT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UNIBCT_PIXEL_MEMORY", "0")
    return shutil.copytree(photo_folder, tmp_path / "photos")


def embed(model, folder, out, **options):
    return embed_images_to_store(model, open_images(folder), out, shard_rows=20, **options)


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_each_image_is_decoded_once_and_the_store_is_the_same(model, folder, tmp_path, monkeypatch):
    counter, images = DecodeCounter(monkeypatch), open_images(folder)
    store = embed(model, folder, tmp_path / "e")
    assert counter.taken() == len(images)
    embed(model, folder, tmp_path / "e")
    assert counter.taken() == 0, "it was finished"
    embed(model, folder, tmp_path / "again")
    assert counter.taken() == len(images), "it was checked"
    monkeypatch.delenv("UNIBCT_PIXEL_MEMORY")
    monkeypatch.setenv("UNIBCT_CACHE", str(tmp_path / "other"))
    embed(model, folder, tmp_path / "kept")
    assert counter.taken() == len(images)
    embed(model, folder, tmp_path / "kept")
    assert counter.taken() == 0, "it was finished"
    assert files_of(tmp_path / "e") == files_of(tmp_path / "kept") == files_of(tmp_path / "again")
    assert_equal(store, open_embeddings(tmp_path / "kept", verify=True))


def test_a_changed_image_is_found_in_a_finished_store(model, folder, tmp_path):
    store = embed(model, folder, tmp_path / "e")
    (folder / store.ids[3]).write_bytes((folder / store.ids[11]).read_bytes())
    with pytest.raises(UserError, match="exists already"):
        embed(model, folder, tmp_path / "e")


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [1, 4])
@pytest.mark.parametrize("change", [False, True])
def test_a_stopped_pass_goes_on_and_embeds_changed_files_again(
    model, folder, tmp_path, monkeypatch, stop_at, change
):
    write, calls = single_pass.write_shard, iter(range(stop_at))

    def stopping(*arguments):
        if next(calls) == stop_at - 1:
            raise KeyboardInterrupt
        return write(*arguments)

    images, counter = open_images(folder), DecodeCounter(monkeypatch)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(single_pass, "write_shard", stopping)
        embed(model, folder, tmp_path / "e")
    counter.taken()
    done = 20 * (stop_at - 1)
    if change and done:
        (folder / images.ids[3]).write_bytes((folder / images.ids[11]).read_bytes())
        done -= 20
    embed(model, folder, tmp_path / "e")
    assert counter.taken() == len(images) - done
    assert_close(open_embeddings(tmp_path / "e", verify=True), embed_images(model, images))
    assert not list((tmp_path / "e").glob("checked-*"))


def test_another_model_is_refused(model, folder, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(single_pass.SinglePass, "_complete", stop)
        embed(model, folder, tmp_path / "e")
    with pytest.raises(UserError, match="unfinished embeddings by another model"):
        embed(small_model(seed=5), folder, tmp_path / "e")
    (tmp_path / "e" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="exists already"):
        embed(model, folder, tmp_path / "e")


def stop(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.slow
def test_a_run_killed_at_the_very_end_goes_on(model, folder, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(single_pass, "sweep", stop)
        embed(model, folder, tmp_path / "e")
    counter = DecodeCounter(monkeypatch)
    store = embed(model, folder, tmp_path / "e")
    assert counter.taken() == 0
    assert_close(store, embed_images(model, open_images(folder)))
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
    with pytest.raises(UserError, match=f"{len(rows)} unreadable images: .*--skip-bad-images"):
        embed(model, folder, tmp_path / "e")
    counter = DecodeCounter(monkeypatch)
    store = embed(model, folder, tmp_path / "e", skip_bad=True)
    assert counter.taken() <= len(rows)
    expected = embed_images(model, images, skip_bad=True)
    stored = open_embeddings(tmp_path / "e", verify=True)
    assert (stored.ids, stored.class_names) == (expected.ids, expected.class_names)
    assert np.array_equal(stored.labels, expected.labels)
    assert np.allclose(np.asarray(stored.vectors), expected.vectors, atol=1e-6)
    assert len(store) == len(images) - len(rows)
    counter.taken()
    embed(model, folder, tmp_path / "e", skip_bad=True)
    assert counter.taken() <= len(rows), "it was finished"


def test_a_shard_without_readable_images(model, folder, tmp_path):
    images = open_images(folder)
    for row in range(20, 40):
        (folder / images.ids[row]).write_bytes(b"no image")
    store = embed(model, folder, tmp_path / "e", skip_bad=True)
    assert store.ids == (*images.ids[:20], *images.ids[40:])
    assert np.asarray(store.vectors).shape[0] == len(images) - 20
    assert store.vectors[[19, 20]].shape[0] == 2
    for row in range(len(images)):
        (folder / images.ids[row]).write_bytes(b"no image")
    with pytest.raises(UserError, match="not one of its"):
        embed(model, folder, tmp_path / "none", skip_bad=True)


def test_several_processes_make_one_pass(model, folder, tmp_path, monkeypatch):
    images, counter = open_images(folder), DecodeCounter(monkeypatch)
    (folder / images.ids[30]).write_bytes(b"no image")
    results = run_ranks(3, lambda ranks: embed(model, folder, tmp_path / "e", ranks=ranks))
    assert all("1 unreadable image: " in str(error) for error in results)
    stores = run_ranks(
        3, lambda ranks: embed(model, folder, tmp_path / "e", ranks=ranks, skip_bad=True)
    )
    assert counter.taken() <= len(images) + 3
    assert {len(store) for store in stores} == {len(images) - 1}
    assert read_json(tmp_path / "e" / "embeddings.json")["images"] == len(images) - 1
