import tempfile
from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.prototypes.test_class_prototypes import classes_of, naive_refined, unit
from unibct.embeddings.folder import Embeddings, open_embeddings
from unibct.embeddings.writing import save_embeddings
from unibct.errors import UserError
from unibct.prototypes import streaming as refinement
from unibct.prototypes.class_prototypes import PROTOTYPE_KINDS, class_prototypes
from unibct.prototypes.streaming import refined_prototypes

SIZES = [1, 7, 2, 60, 8, 8, 1, 33, 90, 15, 9, 3]
ROW = 2 * 16 * 4  # bytes of an old and a new row


def stored(tmp_path, name, vectors, labels, dtype="float32"):
    names = tuple(map(str, range(labels.max() + 1)))
    ids = tuple(map(str, range(len(labels))))
    made = Embeddings(unit(vectors).astype(np.float32), ids, labels, names, name)
    save_embeddings(made, tmp_path / name, dtype=dtype, shard_rows=50)
    return open_embeddings(tmp_path / name).vectors


def data(order, sizes=SIZES):
    v, x, labels = (np.ascontiguousarray(a) for a in classes_of(sizes))
    if order == "class":
        by_class = np.argsort(labels, kind="stable")
        v, x, labels = v[by_class], x[by_class], labels[by_class]
    return v.astype(np.float32), x.astype(np.float32), labels


@pytest.mark.parametrize("kind", PROTOTYPE_KINDS)
@pytest.mark.parametrize("order", ["class", "shuffled"])
@pytest.mark.parametrize("spill", [False, True])
@pytest.mark.parametrize("buffer", [1, 40 * ROW, 1 << 20])
def test_equals_the_prototypes_of_the_whole(tmp_path, kind, order, spill, buffer):
    v, x, labels = data(order)
    old, new = stored(tmp_path, "old", v, labels), stored(tmp_path, "new", x, labels)
    whole = class_prototypes(v, labels, new=x, kind=kind)
    for sources in ((old, new), (v, x), (torch.from_numpy(v), x)):
        ours = refined_prototypes(
            sources[0],
            labels,
            new=sources[1],
            kind=kind,
            buffer=buffer,
            spill=spill,
            scratch=tmp_path,
        )
        assert ours.dtype == np.float32
        assert np.abs(ours - whole).max() < 1e-6
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "old"], "nothing is left behind"


@pytest.mark.parametrize("order", ["class", "shuffled"])
def test_equals_the_naive_inverse(tmp_path, order):
    v, x, labels = data(order)
    old, new = stored(tmp_path, "old", v, labels), stored(tmp_path, "new", x, labels)
    ours = refined_prototypes(old, labels, new=new, tau=0.1, lam=0.8, buffer=50 * ROW)
    for c in range(len(SIZES)):
        naive = naive_refined(v[labels == c], x[labels == c], tau=0.1, lam=0.8)
        assert np.abs(ours[c] - naive / np.linalg.norm(naive)).max() < 1e-5


@pytest.mark.parametrize("order", ["class", "shuffled"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("spill", [False, True])
def test_ranges_of_classes_make_the_whole(order, ranks, spill):
    v, x, labels = data(order)
    cuts = np.linspace(0, len(SIZES), ranks + 1).astype(int)
    options = {"new": x, "buffer": 30 * ROW, "spill": spill}
    parts = [
        refined_prototypes(v, labels, classes=range(first, last), **options)
        for first, last in pairwise(cuts)
    ]
    assert np.abs(np.concatenate(parts) - refined_prototypes(v, labels, new=x)).max() < 1e-6
    assert refined_prototypes(v, labels, classes=range(3, 3), **options).shape == (0, 16)


@pytest.mark.parametrize("order", ["class", "shuffled"])
@pytest.mark.parametrize("spill", [False, True])
def test_half_precision(tmp_path, order, spill):
    v, x, labels = data(order)
    old = stored(tmp_path, "old", v, labels, "float16")
    new = stored(tmp_path, "new", x, labels, "float16")
    options = {"buffer": 30 * ROW, "spill": spill}
    ours = refined_prototypes(old, labels, new=new, **options)
    exact = class_prototypes(np.asarray(old), labels, new=np.asarray(new))
    assert np.abs(ours - exact).max() < 1e-6
    assert np.abs(ours - class_prototypes(v, labels, new=x)).max() < 5e-3


def test_one_class_may_exceed_the_buffer():
    v, x, labels = data("shuffled", [5, 3000, 4])
    ours = refined_prototypes(v, labels, new=x, buffer=100 * ROW)
    assert np.abs(ours - class_prototypes(v, labels, new=x)).max() < 1e-6


def test_without_new_embeddings_the_graph_is_the_old_ones():
    v, _, labels = data("shuffled")
    ours = refined_prototypes(v, labels, buffer=30 * ROW)
    assert np.abs(ours - class_prototypes(v, labels)).max() < 1e-6


def test_blocks_hold_every_row_once_and_no_more_than_the_buffer():
    for order in ("class", "shuffled"):
        v, x, labels = data(order)
        threads = torch.get_num_threads()
        seen = []

        def look(block, v=v, labels=labels, seen=seen):
            rows = block.parts[0] if block.order is None else block.parts[0][block.order]
            own = np.concatenate([v[labels == c] for c in block.classes])
            assert np.array_equal(rows, own)
            assert len(rows) <= 120 or len(block.classes) == 1
            seen.append(block.classes)
            return len(rows)

        done = refinement.map_classes(look, [v, x], labels, buffer=120 * ROW * threads)
        assert sum(done) == len(labels)
        assert sorted(c for classes in seen for c in classes) == list(range(len(SIZES)))
        assert torch.get_num_threads() == threads


def test_rows_in_any_order_are_spilled_when_memory_is_short(tmp_path, monkeypatch):
    made = []
    real = tempfile.TemporaryDirectory

    def watched(*arguments, **options):
        made.append(options["dir"])
        return real(*arguments, **options)

    monkeypatch.setattr(refinement.tempfile, "TemporaryDirectory", watched)
    for order, memory, spills in [
        ("shuffled", 1 << 40, 0),
        ("class", 1000, 0),
        ("shuffled", 1000, 1),
    ]:
        v, x, labels = data(order)
        monkeypatch.setattr(refinement, "_available_memory", lambda memory=memory: memory)
        ours = refined_prototypes(v, labels, new=x, scratch=tmp_path, buffer=30 * ROW)
        assert np.abs(ours - class_prototypes(v, labels, new=x)).max() < 1e-6
        assert made == [tmp_path] * spills
    assert not list(tmp_path.iterdir())


def test_progress_counts_the_images():
    class Counter:
        done = 0

        def task(self, label, total, unit="images", **_):
            assert (label, total, unit) == ("refinement", sum(SIZES), "images")
            return self

        def __enter__(self):
            return self.advance

        def __exit__(self, *_):
            pass

        def advance(self, count):
            self.done += count

    v, x, labels = data("class")
    counter = Counter()
    refined_prototypes(v, labels, new=x, buffer=30 * ROW, progress=counter)
    assert counter.done == sum(SIZES)


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
        ({"old": np.array([[1.0], [1.0], [np.nan], [1.0]])}, "class 1 has NaN .* first row 2"),
        ({"new": np.array([[1.0], [1.0], [1.0], [np.inf]])}, "class 1 has NaN"),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {"old": np.ones((4, 2)), "labels": np.array([0, 0, 1, 1]), "new": np.ones((4, 2))}
    with pytest.raises(UserError, match=message):
        refined_prototypes(**arguments | change)
    assert torch.get_num_threads() >= 1
