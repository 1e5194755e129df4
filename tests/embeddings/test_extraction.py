import re
import threading
from dataclasses import replace

import numpy as np
import pytest

from tests.models.test_model import small_model
from unibct.data.loader import read_pixels
from unibct.distributed.ranks import Ranks
from unibct.embeddings import extraction as embeddings
from unibct.embeddings.extraction import (
    cached_embeddings,
    embed_images,
    embed_images_to_store,
    embed_pixel_batches,
    embed_to_store,
)
from unibct.embeddings.store import Embeddings, open_embeddings, save_embeddings
from unibct.errors import UserError


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture(scope="module")
def pixels(glyph_classes, model):
    return read_pixels(glyph_classes, *model.input.size)


def same(first, second):
    assert np.array_equal(np.asarray(first.vectors), np.asarray(second.vectors))
    assert np.array_equal(first.labels, second.labels)
    assert (first.ids, first.class_names) == (second.ids, second.class_names)
    assert first.fingerprint == second.fingerprint


def test_round_trip(model, glyph_classes, tmp_path):
    fresh = embed_images(model, glyph_classes)
    save_embeddings(fresh, tmp_path / "emb")
    opened = open_embeddings(tmp_path / "emb")
    same(opened, fresh)
    assert np.allclose(np.linalg.norm(opened.vectors, axis=1), 1, atol=1e-5)
    assert (opened.ids, opened.class_names) == (glyph_classes.ids, glyph_classes.class_names)


def test_rows_follow_the_ids(model, glyph_classes, tmp_path):
    save_embeddings(embed_images(model, glyph_classes), tmp_path / "emb")
    opened = open_embeddings(tmp_path / "emb")
    some = glyph_classes.select([50, 3, 20])
    assert np.array_equal(opened.rows_of(some), opened.vectors[[50, 3, 20]])
    fewer = Embeddings(
        np.array(opened.vectors[:2]),
        opened.ids[:2],
        opened.labels[:2],
        opened.class_names,
        opened.fingerprint,
    )
    with pytest.raises(UserError, match=r"3 images of .* have no embedding"):
        fewer.rows_of(some)


@pytest.mark.parametrize("flip", [False, True])
def test_a_store_is_what_is_made_in_memory(model, pixels, tmp_path, flip):
    made = embed_to_store(model, pixels, tmp_path / "e", flip=flip, shard_rows=20)
    same(made, embed_pixel_batches(model, pixels, flip=flip))
    same(open_embeddings(tmp_path / "e", verify=True), made)
    names = {path.name.split("-")[0] for path in (tmp_path / "e").iterdir()}
    assert names == {"vectors", "labels", "ids", "classes.txt", "embeddings.json"}


@pytest.mark.parametrize("world", [2, 3])
def test_several_processes_make_one_store(model, pixels, tmp_path, world):
    waiting, opened = threading.Barrier(world), {}

    class Threads(Ranks):
        def barrier(self):
            waiting.wait(60)

    def run(rank):
        opened[rank] = embed_to_store(
            model,
            pixels,
            tmp_path / "e",
            shard_rows=20,
            ranks=Threads(rank, world),
        )

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for made in opened.values():
        same(made, embed_pixel_batches(model, pixels))
    assert len(opened) == world


class Counter:
    """Counts the images that a model embeds, and stops it at one of the shards."""

    def __init__(self, monkeypatch, stop_at=None):
        self.images, self.shards = 0, 0
        real, write = embeddings.Model.embed_pixels, embeddings.write_shard

        def embed(model, batch):
            self.images += len(batch)
            return real(model, batch)

        def write_shard(*arguments):
            self.shards += 1
            if self.shards == stop_at:
                raise KeyboardInterrupt
            return write(*arguments)

        monkeypatch.setattr(embeddings.Model, "embed_pixels", embed)
        monkeypatch.setattr(embeddings, "write_shard", write_shard)


@pytest.mark.parametrize("stop_at", [1, 3])
def test_a_stopped_run_goes_on_after_its_last_shard(
    model, glyph_classes, pixels, tmp_path, monkeypatch, stop_at
):
    options = {"shard_rows": 20}
    with monkeypatch.context() as patch:
        Counter(patch, stop_at)
        with pytest.raises(KeyboardInterrupt):
            embed_images_to_store(model, glyph_classes, tmp_path / "e", **options)
    assert not (tmp_path / "e" / "embeddings.json").exists()
    with monkeypatch.context() as patch:
        counter = Counter(patch)
        made = embed_images_to_store(model, glyph_classes, tmp_path / "e", **options)
        assert counter.images == len(glyph_classes) - 20 * (stop_at - 1)
        embed_images_to_store(model, glyph_classes, tmp_path / "e", **options)
        assert counter.images == len(glyph_classes) - 20 * (stop_at - 1), "it was finished"
    same(made, embed_pixel_batches(model, pixels))


def test_models_are_never_mixed(model, pixels, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        Counter(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            embed_to_store(model, pixels, tmp_path / "e", shard_rows=20)
    for other in ({"flip": True}, {"dtype": "float16"}):
        with pytest.raises(UserError, match="unfinished embeddings by another model"):
            embed_to_store(model, pixels, tmp_path / "e", shard_rows=20, **other)
    shard = tmp_path / "e" / "vectors-000001.npy"
    shard.write_bytes(shard.read_bytes()[:-4] + b"ruin")
    same(
        embed_to_store(model, pixels, tmp_path / "e", shard_rows=20),
        embed_pixel_batches(model, pixels),
    )
    with pytest.raises(UserError, match="exists already"):
        embed_to_store(model, pixels, tmp_path / "e", flip=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="exists already"):
        embed_to_store(model, pixels, tmp_path / "mine")


def test_a_cache_is_used_completed_and_made_again(model, pixels, tmp_path, monkeypatch):
    folder = tmp_path / "caches" / "plain"
    with monkeypatch.context() as patch:
        counter = Counter(patch)
        fresh = cached_embeddings(model, pixels, folder)
        same(cached_embeddings(model, pixels, folder), fresh)
        assert counter.images == len(pixels.images)
        changed = replace(pixels, digest="other pixels")
        same(cached_embeddings(model, changed, folder), fresh)
        assert counter.images == 2 * len(pixels.images)
        vectors = folder / "vectors-000000.npy"
        vectors.write_bytes(vectors.read_bytes()[:-4] + b"ruin")
        same(cached_embeddings(model, changed, folder), fresh)
        assert counter.images == 3 * len(pixels.images)
    same(fresh, embed_pixel_batches(model, pixels))


def test_two_runs_may_want_the_same_cache_at_once(model, pixels, tmp_path, monkeypatch):
    found, counter = [], Counter(monkeypatch)

    def run():
        found.append(cached_embeddings(model, pixels, tmp_path / "c"))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert counter.images == len(pixels.images)


def test_a_full_disk_costs_nothing_but_time(model, pixels, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(embeddings, "write_shard", full)
    same(cached_embeddings(model, pixels, tmp_path / "c"), embed_pixel_batches(model, pixels))


def test_an_embedding_that_is_not_finite_is_named(model, pixels, tmp_path, monkeypatch):
    real = embeddings.Model.embed_pixels

    def broken(model, batch):
        found = real(model, batch).copy()
        found[5, 0] = np.nan
        return found

    monkeypatch.setattr(embeddings.Model, "embed_pixels", broken)
    with pytest.raises(UserError, match=f"no finite .* for {re.escape(pixels.images.ids[5])}"):
        embed_to_store(model, pixels, tmp_path / "e")
