from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.prototypes.class_data import ROW, SIZES, classes_in, naive_refined, unit
from unibct.embeddings.folder import Embeddings, open_embeddings
from unibct.embeddings.writing import save_embeddings
from unibct.errors import UserError
from unibct.prototypes.class_blocks import MemoryLimits
from unibct.prototypes.class_prototypes import class_prototypes
from unibct.prototypes.kinds import PROTOTYPE_KINDS


def stored(tmp_path, name, vectors, labels, dtype="float32"):
    names = tuple(map(str, range(labels.max() + 1)))
    ids = tuple(map(str, range(len(labels))))
    embeddings = Embeddings(unit(vectors).astype(np.float32), ids, labels, names, name)
    save_embeddings(embeddings, tmp_path / name, dtype=dtype, shard_rows=50)
    return open_embeddings(tmp_path / name).vectors


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROTOTYPE_KINDS)
@pytest.mark.parametrize("order", ["class", "shuffled"])
@pytest.mark.parametrize("spill", [False, True])
@pytest.mark.parametrize("buffer_bytes", [1, 40 * ROW, 1 << 20])
def test_equals_the_prototypes_of_the_whole(tmp_path, kind, order, spill, buffer_bytes):
    v, x, labels = classes_in(order, SIZES)
    old, new = stored(tmp_path, "old", v, labels), stored(tmp_path, "new", x, labels)
    whole = class_prototypes(v, labels, new=x, kind=kind)
    limits = MemoryLimits(buffer_bytes, tmp_path, spill)
    for sources in ((old, new), (v, x), (torch.from_numpy(v), x)):
        ours = class_prototypes(sources[0], labels, new=sources[1], kind=kind, memory=limits)
        assert isinstance(ours, torch.Tensor) == isinstance(sources[0], torch.Tensor)
        ours = np.asarray(ours)
        assert ours.dtype == np.float32
        assert np.abs(ours - whole).max() < 1e-6
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "old"], "nothing is left behind"


@pytest.mark.parametrize("order", ["class", "shuffled"])
def test_equals_the_naive_inverse(tmp_path, order):
    v, x, labels = classes_in(order, SIZES)
    old, new = stored(tmp_path, "old", v, labels), stored(tmp_path, "new", x, labels)
    limits = MemoryLimits(50 * ROW)
    ours = class_prototypes(old, labels, new=new, tau=0.1, lam=0.8, memory=limits)
    for c in range(len(SIZES)):
        naive = naive_refined(v[labels == c], x[labels == c], tau=0.1, lam=0.8)
        assert np.abs(ours[c] - naive / np.linalg.norm(naive)).max() < 1e-5


@pytest.mark.parametrize("order", ["class", "shuffled"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("spill", [False, True])
def test_ranges_of_classes_make_the_whole(order, ranks, spill):
    v, x, labels = classes_in(order, SIZES)
    cuts = np.linspace(0, len(SIZES), ranks + 1).astype(int)
    options = {"new": x, "memory": MemoryLimits(30 * ROW, spill=spill)}
    parts = [
        class_prototypes(v, labels, classes=range(first, last), **options)
        for first, last in pairwise(cuts)
    ]
    assert (
        np.abs(
            np.concatenate(parts) - class_prototypes(v, labels, new=x, memory=MemoryLimits())
        ).max()
        < 1e-6
    )
    assert class_prototypes(v, labels, classes=range(3, 3), **options).shape == (0, 16)


@pytest.mark.parametrize("order", ["class", "shuffled"])
@pytest.mark.parametrize("spill", [False, True])
def test_half_precision(tmp_path, order, spill):
    v, x, labels = classes_in(order, SIZES)
    old = stored(tmp_path, "old", v, labels, "float16")
    new = stored(tmp_path, "new", x, labels, "float16")
    ours = class_prototypes(old, labels, new=new, memory=MemoryLimits(30 * ROW, spill=spill))
    exact = class_prototypes(np.asarray(old), labels, new=np.asarray(new))
    assert np.abs(ours - exact).max() < 1e-6
    assert np.abs(ours - class_prototypes(v, labels, new=x)).max() < 5e-3


@pytest.mark.parametrize(
    ("order", "spill"), [("class", False), ("random", False), ("random", True)]
)
def test_the_byte_order_of_another_machine(order, spill):
    v, x, labels = classes_in(order, SIZES)
    memory = MemoryLimits(30 * ROW, spill=spill)
    expected = class_prototypes(v, labels, new=x, memory=memory)
    found = class_prototypes(v.astype(">f4"), labels, new=x.astype(">f4"), memory=memory)
    assert np.array_equal(found, expected)
    some = class_prototypes(v.astype(">f4"), labels, new=x.astype(">f4"), classes=range(1, 3))
    assert np.allclose(some, expected[1:3], atol=1e-6)


def test_the_smallest_tau_gives_prototypes():
    v, x, labels = classes_in("class", SIZES)
    for scale in (1e-18, 1, 1e18):
        found = class_prototypes(v, labels, new=(x * scale).astype(np.float32), tau=1e-30)
        assert np.isfinite(found).all()


def test_one_class_may_exceed_the_buffer():
    v, x, labels = classes_in("shuffled", [5, 3000, 4])
    ours = class_prototypes(v, labels, new=x, memory=MemoryLimits(100 * ROW))
    assert np.abs(ours - class_prototypes(v, labels, new=x)).max() < 1e-6


def test_without_new_embeddings_the_graph_is_the_old_ones():
    v, _, labels = classes_in("shuffled", SIZES)
    ours = class_prototypes(v, labels, memory=MemoryLimits(30 * ROW))
    assert np.abs(ours - class_prototypes(v, labels)).max() < 1e-6


def test_progress_counts_the_images(counting_progress):
    v, x, labels = classes_in("class", SIZES)
    progress = counting_progress(total=sum(SIZES))
    class_prototypes(v, labels, new=x, memory=MemoryLimits(30 * ROW), progress=progress)
    assert progress.done == sum(SIZES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lam": 1.0}, "lam must be at least 0 and below 1"),
        ({"tau": 0.0}, "tau must be positive"),
        ({"kind": "median"}, "unknown kind of prototype 'median'"),
        ({"drop": 1.0}, "drop must be"),
        ({"new": np.ones((3, 2))}, "new has 3 rows but old has 4"),
        ({"old": np.ones(4)}, r"\(rows, dim\)"),
        ({"old": np.ones((4, 2), dtype=int)}, "old must be floating point"),
        ({"labels": np.array([0, 0, 2, 2])}, "gap: no image has label 1"),
        ({"classes": range(1, 3)}, r"range within 0…2, not range\(1, 3\)"),
        ({"classes": range(0, 2, 2)}, "range within 0…2"),
        ({"old": np.array([[1.0], [1.0], [np.nan], [1.0]])}, "class 1 has NaN .* first row 2"),
        ({"new": np.array([[1.0], [1.0], [1.0], [np.inf]])}, "class 1 has NaN"),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {"old": np.ones((4, 2)), "labels": np.array([0, 0, 1, 1]), "new": np.ones((4, 2))}
    with pytest.raises(UserError, match=message):
        class_prototypes(**arguments | change, memory=MemoryLimits())
    assert torch.get_num_threads() >= 1
