from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.embeddings.random_embeddings import random_embeddings
from unibct.data.training_classes import UNKNOWN_CLASSES
from unibct.embeddings.store_plan import (
    StorePlan,
    is_finished,
    noted_shards,
    plan_store,
    remove_shard_notes,
    require_new_or_unfinished,
    shard_is_done,
    write_shard_note,
)
from unibct.embeddings.stored import StoredEmbeddings
from unibct.embeddings.writing import StoredClasses, write_description, write_shard
from unibct.errors import UserError

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


def test_notes_tell_which_shards_are_done(tmp_path):
    require_new_or_unfinished(tmp_path / "new", PLAN)
    other = replace(PLAN, flip=True)
    shards = []
    for number, rows in enumerate(PLAN.shard_ranges):
        assert not shard_is_done(tmp_path, number, PLAN)
        shards.append(write(tmp_path, number, rows))
        assert not shard_is_done(tmp_path, number, PLAN)
        write_shard_note(tmp_path, number, PLAN, shards[-1])
        assert shard_is_done(tmp_path, number, PLAN)
        assert not shard_is_done(tmp_path, number, other)
    assert noted_shards(tmp_path, PLAN) == shards
    require_new_or_unfinished(tmp_path, PLAN)
    with pytest.raises(UserError, match="unfinished embeddings by another model"):
        require_new_or_unfinished(tmp_path, other)
    (tmp_path / "ids-000001.txt").write_text("changed")
    assert not shard_is_done(tmp_path, 1, PLAN)
    (tmp_path / "shard-000002.json").write_text("[]")
    with pytest.raises(UserError, match=r"shard-000002.json cannot be understood; remove"):
        noted_shards(tmp_path, PLAN)


def test_a_store_is_finished_when_its_description_has_the_key(tmp_path):
    shard = write(tmp_path, 0, range(2))
    write_shard_note(tmp_path, 0, PLAN, shard)
    assert not is_finished(tmp_path, PLAN)
    write_description(
        tmp_path,
        [shard],
        dim=3,
        dtype="float32",
        fingerprint="model",
        classes=StoredClasses(["a"], None, UNKNOWN_CLASSES),
        source=PLAN.key,
    )
    remove_shard_notes(tmp_path)
    assert not list(tmp_path.glob("shard-*"))
    assert is_finished(tmp_path, PLAN)
    assert not is_finished(tmp_path, replace(PLAN, dtype="float16"))
    with pytest.raises(UserError, match="exists already"):
        require_new_or_unfinished(tmp_path, PLAN)
