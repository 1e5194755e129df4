import re
import threading

import numpy as np
import pytest

from tests.distributed.thread_ranks import run_ranks
from tests.embeddings.embedding_checks import EmbeddingCounter, assert_close, assert_equal
from tests.models.test_model import small_model
from unibct.data.loader import read_pixels
from unibct.distributed.ranks import ALONE
from unibct.embeddings import cache, extraction
from unibct.embeddings.extraction import (
    embed_images,
    embed_images_to_store,
    embed_pixel_batches,
    embed_to_store,
)
from unibct.embeddings.folder import open_embeddings
from unibct.embeddings.store_plan import plan_store
from unibct.embeddings.writing import save_embeddings
from unibct.errors import UserError
from unibct.models.model import Model


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture(scope="module")
def pixels(glyph_classes, model):
    return read_pixels(glyph_classes, model.input.frame)


def stored(model, pixels, folder, *, ranks=ALONE, **plan):
    return embed_to_store(model, pixels, folder, plan_store(model, pixels, **plan), ranks=ranks)


def test_round_trip(model, glyph_classes, tmp_path):
    fresh = embed_images(model, glyph_classes)
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
    assert names == {
        "vectors",
        "labels",
        "ids",
        "classes.txt",
        "training_classes.txt",
        "embeddings.json",
    }


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
    for module in (extraction, cache):
        real = module.is_finished

        def is_finished(*arguments, real=real):
            return real(*arguments) if seen.rank == 0 else not first_sees

        monkeypatch.setattr(module, "is_finished", is_finished)

    def run(ranks):
        seen.rank = ranks.rank
        if through == "cache":
            return cache.cached_embeddings(model, pixels, tmp_path / "e", ranks=ranks)
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
    with monkeypatch.context() as patch:
        EmbeddingCounter(patch, stop_at)
        with pytest.raises(KeyboardInterrupt):
            embed_images_to_store(model, glyph_classes, tmp_path / "e", **options)
    assert not (tmp_path / "e" / "embeddings.json").exists()
    with monkeypatch.context() as patch:
        counter = EmbeddingCounter(patch)
        store = embed_images_to_store(model, glyph_classes, tmp_path / "e", **options)
        assert counter.images == len(glyph_classes) - 20 * (stop_at - 1)
        embed_images_to_store(model, glyph_classes, tmp_path / "e", **options)
        assert counter.images == len(glyph_classes) - 20 * (stop_at - 1), "it was finished"
    assert_close(store, embed_pixel_batches(model, pixels))


def test_models_are_never_mixed(model, pixels, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        EmbeddingCounter(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            stored(model, pixels, tmp_path / "e", shard_rows=20)
    for other in ({"flip": True}, {"dtype": "float16"}):
        with pytest.raises(UserError, match="unfinished embeddings by another model"):
            stored(model, pixels, tmp_path / "e", shard_rows=20, **other)
    shard = tmp_path / "e" / "vectors-000001.npy"
    shard.write_bytes(shard.read_bytes()[:-4] + b"ruin")
    assert_close(
        stored(model, pixels, tmp_path / "e", shard_rows=20),
        embed_pixel_batches(model, pixels),
    )
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
