import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.notes import show
from tests.prototypes.class_data import (
    ROW,
    SIZES,
    classes_in,
    classes_of,
    gap_to_naive,
    naive_refined,
    unit,
)
from unibct.embeddings.store import Embeddings, open_embeddings, save_embeddings
from unibct.errors import UserError
from unibct.losses import arcface
from unibct.prototypes import class_prototypes as module
from unibct.prototypes.class_blocks import MemoryLimits
from unibct.prototypes.class_prototypes import class_prototypes, grouped_prototypes
from unibct.prototypes.inputs import PROTOTYPE_KINDS, PrototypeSettings
from unibct.prototypes.weights import structural_weights


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_grouped_and_ordered_rows_give_the_naive_prototypes(dtype):
    sizes = np.array([2, 1, 9])
    v, x, labels = classes_in("shuffled", sizes)
    old, new = torch.from_numpy(v).to(dtype), torch.from_numpy(x).to(dtype)
    settings = PrototypeSettings("structural", tau=0.1, lam=0.8)
    order, counts = np.argsort(labels, kind="stable"), []
    ours = grouped_prototypes(
        old, sizes, new=new, settings=settings, order=order, advance=counts.append
    )
    grouped = grouped_prototypes(old[order], sizes, new=new[order], settings=settings)
    assert torch.equal(ours, grouped)
    assert ours.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert sum(counts) == 12
    assert gap_to_naive(ours, old.numpy(), new.numpy(), labels, 0.1, 0.8) < 1e-5


def test_a_centroid_is_the_mean_of_the_normalised_rows():
    sizes = np.array([4, 3])
    v, _, labels = classes_in("class", sizes)
    old = torch.from_numpy(v)
    ours = grouped_prototypes(old, sizes, new=old, settings=PrototypeSettings("centroid"))
    means = np.stack([unit(v[labels == c]).mean(axis=0) for c in range(2)])
    assert np.abs(ours.numpy() - unit(means)).max() < 1e-6


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
    whole = class_prototypes(labels, old=v, new=x, kind=kind)
    limits = MemoryLimits(buffer_bytes, tmp_path, spill)
    for sources in ((old, new), (v, x), (torch.from_numpy(v), x)):
        ours = class_prototypes(labels, old=sources[0], new=sources[1], kind=kind, memory=limits)
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
    ours = class_prototypes(labels, old=old, new=new, tau=0.1, lam=0.8, memory=limits)
    assert gap_to_naive(ours, v, x, labels, 0.1, 0.8) < 1e-5


@pytest.mark.parametrize("order", ["class", "shuffled"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("spill", [False, True])
def test_ranges_of_classes_make_the_whole(order, ranks, spill):
    v, x, labels = classes_in(order, SIZES)
    cuts = np.linspace(0, len(SIZES), ranks + 1).astype(int)
    options = {"new": x, "memory": MemoryLimits(30 * ROW, spill=spill)}
    parts = [
        class_prototypes(labels, old=v, classes=range(first, last), **options)
        for first, last in pairwise(cuts)
    ]
    whole = class_prototypes(labels, old=v, new=x, memory=MemoryLimits())
    assert np.abs(np.concatenate(parts) - whole).max() < 1e-6
    assert class_prototypes(labels, old=v, classes=range(3, 3), **options).shape == (0, 16)


@pytest.mark.parametrize("order", ["class", "shuffled"])
@pytest.mark.parametrize("spill", [False, True])
def test_half_precision(tmp_path, order, spill):
    v, x, labels = classes_in(order, SIZES)
    old = stored(tmp_path, "old", v, labels, "float16")
    new = stored(tmp_path, "new", x, labels, "float16")
    ours = class_prototypes(labels, old=old, new=new, memory=MemoryLimits(30 * ROW, spill=spill))
    exact = class_prototypes(labels, old=np.asarray(old), new=np.asarray(new))
    assert np.abs(ours - exact).max() < 1e-6
    assert np.abs(ours - class_prototypes(labels, old=v, new=x)).max() < 5e-3


@pytest.mark.parametrize(
    ("order", "spill"), [("class", False), ("random", False), ("random", True)]
)
def test_the_byte_order_of_another_machine(order, spill):
    v, x, labels = classes_in(order, SIZES)
    memory = MemoryLimits(30 * ROW, spill=spill)
    expected = class_prototypes(labels, old=v, new=x, memory=memory)
    found = class_prototypes(labels, old=v.astype(">f4"), new=x.astype(">f4"), memory=memory)
    assert np.array_equal(found, expected)
    some = class_prototypes(labels, old=v.astype(">f4"), new=x.astype(">f4"), classes=range(1, 3))
    assert np.allclose(some, expected[1:3], atol=1e-6)


def test_the_smallest_tau_gives_prototypes():
    v, x, labels = classes_in("class", SIZES)
    for scale in (1e-18, 1, 1e18):
        found = class_prototypes(labels, old=v, new=(x * scale).astype(np.float32), tau=1e-30)
        assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("sizes", "has_new", "rows"),
    [
        pytest.param([5, 3000, 4], True, 100, id="one class exceeds the buffer"),
        pytest.param(SIZES, False, 30, id="the graph is that of the old embeddings"),
    ],
)
def test_blocks_give_what_the_whole_gives(sizes, has_new, rows):
    v, x, labels = classes_in("shuffled", sizes)
    arrays = {"old": v, "new": x if has_new else None}
    ours = class_prototypes(labels, **arrays, memory=MemoryLimits(rows * ROW))
    assert np.abs(ours - class_prototypes(labels, **arrays)).max() < 1e-6


BAD_EVERYWHERE = [
    ({"lam": 1.0}, "lam must be at least 0 and below 1"),
    ({"tau": 0.0}, "tau must be positive"),
    ({"kind": "median"}, "unknown prototype kind 'median'"),
    ({"drop": 1.0}, "drop must be"),
    ({"new": np.ones((3, 2))}, "new has 3 rows but old has 4"),
    ({"old": np.ones(4)}, r"\(rows, dim\)"),
    ({"labels": np.array([0, 0, 2, 2])}, "gap: no image has label 1"),
    ({"labels": [0, 0, 1]}, "3 entries, but there are 4 rows"),
    ({"labels": [-1, 0, 0, 0]}, "negative"),
]
BAD_IN_MEMORY = [({"old": np.full((4, 2), np.nan)}, "NaN or infinite values, first in row 0")]
BAD_IN_BLOCKS = [
    ({"old": np.ones((4, 2), dtype=int)}, "old must be floating point"),
    ({"classes": range(1, 3)}, r"range within 0…2, not range\(1, 3\)"),
    ({"classes": range(0, 2, 2)}, "range within 0…2"),
    ({"old": np.array([[1.0], [1.0], [np.nan], [1.0]])}, "class 1 has NaN .* first row 2"),
    ({"new": np.array([[1.0], [1.0], [1.0], [np.inf]])}, "class 1 has NaN"),
]


@pytest.mark.parametrize(
    ("memory", "change", "message"),
    [(None, *case) for case in BAD_EVERYWHERE + BAD_IN_MEMORY]
    + [(MemoryLimits(), *case) for case in BAD_EVERYWHERE + BAD_IN_BLOCKS],
)
def test_bad_input_is_named(memory, change, message):
    arguments = {"old": np.ones((4, 2)), "labels": [0, 0, 1, 1], "new": np.ones((4, 2))}
    with pytest.raises(UserError, match=message):
        class_prototypes(**arguments | change, memory=memory)
    assert torch.get_num_threads() >= 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("tau", "lam"), [(0.05, 0.9), (0.1, 0.99), (1.0, 0.5), (0.05, 0.0)])
def test_structural_equals_the_naive_inverse(dtype, tau, lam):
    v, x, labels = classes_of([1, 2, 3, 7, 8, 8, 9, 40, 41, 130])
    v, x = v.astype(dtype), x.astype(dtype)
    ours = class_prototypes(labels, old=v, new=x, tau=tau, lam=lam)
    assert ours.dtype == dtype
    assert gap_to_naive(ours, v, x, labels, tau, lam) < 1e-5


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=8),
    st.floats(0.02, 2.0),
    st.floats(0.0, 0.98),
    st.integers(0, 1000),
)
def test_structural_equals_the_naive_inverse_everywhere(sizes, tau, lam, seed):
    v, x, labels = classes_of(sizes, dim=5, seed=seed)
    ours = class_prototypes(labels, old=v, new=x, tau=tau, lam=lam)
    assert gap_to_naive(ours, v, x, labels, tau, lam) < 1e-5


def test_the_wrong_axis_gives_the_centroid_and_ours_does_not():
    v, x, labels = classes_of([20])
    centroid = class_prototypes(labels, old=v, kind="centroid")[0]
    wrong = naive_refined(v, x, axis=0)
    assert np.abs(wrong / np.linalg.norm(wrong) - centroid).max() < 1e-12
    refined = class_prototypes(labels, old=v, new=x)[0]
    assert np.abs(refined - centroid).max() > 1e-3


def test_one_and_two_images():
    v, x, labels = classes_of([1, 2])
    ours = class_prototypes(labels, old=v, new=x)
    mean = unit(v[labels == 1]).mean(axis=0)
    assert np.allclose(ours[0], unit(v[labels == 0])[0], atol=1e-12)
    assert np.allclose(ours[1], mean / np.linalg.norm(mean), atol=1e-12)


@pytest.mark.parametrize("tau", [1e-2, 1e-3, 1e-4])
def test_a_very_small_tau_does_not_underflow(tau):
    v, x, labels = classes_of([6, 9], noise=1.5)
    v, x = v.astype(np.float32), x.astype(np.float32)
    x = unit(x.astype(np.float64)).astype(np.float32)
    ours = class_prototypes(labels, old=v, new=x, tau=tau)
    assert gap_to_naive(ours, v, x, labels, tau) < 2e-3


@pytest.mark.parametrize("tau", [0.02, 0.03, 0.05, 0.5])
@pytest.mark.parametrize("lam", [0.5, 0.9, 0.999])
def test_copies_clusters_and_outliers_converge(tau, lam):
    # The hard graphs: parts that are all but closed have eigenvalues next to 1.
    rng = np.random.default_rng(0)
    centres = unit(rng.normal(size=(4, 16)))
    x = np.repeat(centres, [30, 12, 2, 1], axis=0)
    x[5:35] += 0.2 * rng.normal(size=(30, 16))
    x[40] = -x[0]
    v, labels = rng.normal(size=x.shape), np.zeros(45, int)
    for dtype, bound in ((np.float32, 3e-4), (np.float64, 1e-9)):
        arrays = {"old": v.astype(dtype), "new": x.astype(dtype)}
        ours = class_prototypes(labels, **arrays, tau=tau, lam=lam)
        assert gap_to_naive(ours, v, x, labels, tau, lam) < bound


@pytest.mark.parametrize("lam", [0.9995, 0.99999, 1 - 1e-7, 1 - 1e-9])
@pytest.mark.parametrize("tau", [0.02, 0.05, 1.0])
def test_a_lambda_next_to_one_is_solved_too(tau, lam):
    v, x, labels = classes_of([1, 2, 3, 7, 8, 60], noise=1.0)
    v, x = v.astype(np.float32), x.astype(np.float32)
    for dtype, bound in ((np.float32, 1e-5), (np.float64, 2e-6)):
        arrays = {"old": v.astype(dtype), "new": x.astype(dtype)}
        ours = class_prototypes(labels, **arrays, tau=tau, lam=lam)
        assert ours.dtype == dtype
        assert gap_to_naive(ours, v, x, labels, tau, lam) < bound


def test_drop_leaves_out_the_farthest():
    # Nine copies of one direction and an outlier: the outlier goes, the rest average.
    v = np.r_[np.tile([[1.0, 0.0]], (9, 1)), [[0.0, 1.0]]]
    labels = np.zeros(10, dtype=int)
    assert np.allclose(class_prototypes(labels, old=v, kind="drop"), [[1.0, 0.0]])


@given(st.lists(st.integers(1, 25), min_size=1, max_size=5), st.floats(0, 0.45))
def test_drop_equals_a_naive_loop(sizes, drop):
    v, _, labels = classes_of(sizes, dim=4)
    ours = class_prototypes(labels, old=v, kind="drop", drop=drop)
    for c, m in enumerate(sizes):
        rows = unit(v[labels == c])
        distance = np.linalg.norm(rows - rows.mean(axis=0), axis=1)
        nearest = rows[np.argsort(distance, kind="stable")[: m - int(drop * m + 1e-9)]]
        mean = nearest.mean(axis=0)
        assert np.allclose(ours[c], mean / np.linalg.norm(mean), atol=1e-6)


def test_kinds_of_arrays_and_order():
    v, x, labels = classes_of([4, 6, 5])
    v, x = v.astype(np.float32), x.astype(np.float32)
    ours = class_prototypes(labels, old=v, new=x)
    tensors = [torch.from_numpy(array) for array in (labels, v, x)]
    theirs = class_prototypes(tensors[0], old=tensors[1], new=tensors[2])
    assert isinstance(ours, np.ndarray)
    assert isinstance(theirs, torch.Tensor)
    assert np.allclose(ours, theirs.numpy(), atol=1e-6)
    shuffle = np.random.default_rng(1).permutation(len(labels))
    again = class_prototypes(labels[shuffle], old=v[shuffle], new=x[shuffle])
    assert np.allclose(ours, again, atol=1e-5)
    assert np.allclose(class_prototypes(labels, old=v), class_prototypes(labels, old=v, new=v))
    halves = class_prototypes(labels, old=v.astype(np.float16), new=x.astype(np.float16))
    assert np.allclose(ours, halves, atol=2e-2)


@pytest.mark.filterwarnings("error")
def test_read_only_arrays_and_extreme_lambda():
    v, x, labels = classes_of([5, 6])
    for array in (v, x):
        array.flags.writeable = False
    prototypes_ = class_prototypes(labels, old=v, new=x, lam=0.999)
    arcface(v, prototypes_, labels)
    assert np.isfinite(structural_weights(x, labels, lam=1 - 1e-15)).all()


@pytest.mark.parametrize("length", [1e-30, 1e-12, 1e12, 1e30])
def test_lengths_do_not_matter(length):
    v, x, labels = (a.astype(np.float32) for a in classes_of([1, 3, 20]))
    labels = labels.astype(int)
    ours = class_prototypes(labels, old=v, new=x)
    scaled = np.float32(length) * x
    scaled[::2] *= 7
    again = class_prototypes(labels, old=np.float32(length) * v, new=scaled)
    assert np.abs(ours - again).max() < 1e-6


def test_a_row_of_zeros_is_far_from_all_and_harms_none():
    v, x, labels = classes_of([6, 1])
    zero = np.flatnonzero(labels == 0)[2]
    v[zero], x[zero] = 0, 0
    ours = class_prototypes(labels, old=v, new=x)
    assert np.isfinite(ours).all()
    assert np.allclose(np.linalg.norm(ours, axis=1), 1)


def test_memory_does_not_grow_with_the_dimension_of_the_data():
    v, x, labels = classes_of([200] * 20, dim=64)
    tracemalloc.start()
    class_prototypes(labels, old=v, new=x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < v.nbytes  # NumPy's side: indices and labels only


def test_stores_ranges_and_limits_are_streamed_and_arrays_are_not(tmp_path, monkeypatch):
    v, x, labels = classes_in("shuffled", [3, 9, 2])
    whole = class_prototypes(labels, old=v, new=x)
    streamed = []
    real = module.streamed_prototypes

    def counted(*arguments, **options):
        streamed.append(options["memory"])
        return real(*arguments, **options)

    monkeypatch.setattr(module, "streamed_prototypes", counted)
    ids = tuple(map(str, range(len(labels))))
    save_embeddings(Embeddings(x, ids, labels, ("a", "b", "c"), "new"), tmp_path / "new")
    rows = open_embeddings(tmp_path / "new").vectors
    limits = MemoryLimits(buffer_bytes=1000)
    for old, options, calls in [
        (v, {"new": x}, 0),
        (torch.from_numpy(v), {"new": x}, 0),
        (v, {"new": rows}, 1),
        (torch.from_numpy(v), {"new": rows}, 2),
        (v, {"new": x, "classes": range(3)}, 3),
        (torch.from_numpy(v), {"new": x, "memory": limits}, 4),
    ]:
        ours = class_prototypes(labels, old=old, **options)
        assert type(ours) is type(old)
        assert np.abs(np.asarray(ours) - whole).max() < 1e-6
        assert len(streamed) == calls
    assert streamed[-1] is limits
    ours = class_prototypes(torch.from_numpy(labels), old=rows, kind="centroid")
    assert isinstance(ours, np.ndarray)
    assert np.abs(ours - class_prototypes(labels, old=x, kind="centroid")).max() < 1e-6


@pytest.mark.parametrize("memory", [None, MemoryLimits(30 * ROW)])
def test_progress_counts_the_images(memory, counting_progress):
    v, x, labels = classes_in("class", SIZES)
    counted = counting_progress(total=sum(SIZES))
    show(counted)
    class_prototypes(labels, old=v, new=x, memory=memory)
    assert counted.done == sum(SIZES)
