"""The IJB protocol against hand values and naive loops, on files written in the true layout."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from unibct.errors import UserError
from unibct.evaluation.metrics import mate_ranks, tar_at_far
from unibct.evaluation.protocols.ijb import bootstrap, meta, pairs
from unibct.evaluation.protocols.ijb.align import TEMPLATE, align, similarity, warp
from unibct.evaluation.protocols.ijb.bootstrap import sampled_tar, sampled_top, subject_draws
from unibct.evaluation.protocols.ijb.meta import Meta, Subjects, read_meta, rows_of
from unibct.evaluation.protocols.ijb.pairs import VerificationTest, pair_scores
from unibct.evaluation.protocols.ijb.protocol import evaluate_templates
from unibct.evaluation.protocols.ijb.search import OpenSearch, identification_test
from unibct.evaluation.protocols.ijb.templates import pool_templates

# --- meta files -----------------------------------------------------------------------------

POINTS = " ".join(f"{v:.3f}" for v in TEMPLATE.ravel())
FILES = {
    "face_tid_mid.txt": "1.jpg 1 69544\n2.jpg 1 69544\n3.jpg 7 12\n3.jpg 90 12\n5.jpg 4 3\n",
    "name_5pts_score.txt": "".join(
        f"{name}.jpg {POINTS} 0.{number}\n" for number, name in enumerate("12335", start=5)
    ),
    "template_pair_label.txt": "1 7 0\n4 90 1\n1 90 0\n",
    "1N_gallery_1.csv": "TEMPLATE_ID,SUBJECT_ID,FILENAME\n1,10,img/1.jpg\n1,10,img/2.jpg\n",
    "1N_gallery_2.csv": '\ufeff"tid", "sid"\r\n"4", "20"\r\n\r\n',
    "1N_probe_mixed.csv": 'a,b,c\n90,20,"x, y"\n7,10,\n90,20,z\n',
}


def write_meta(root, name="ijbc", **changes):
    (root / "meta").mkdir(exist_ok=True)
    for file, text in (FILES | changes).items():
        for number, part in enumerate(meta.GALLERIES[name], start=1):
            file = file.replace(f"gallery_{number}", f"gallery_{part}")
        path = root / "meta" / f"{name}_{file}"
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(text.encode())
    return root


@pytest.mark.parametrize("name", ["ijbc", "ijbb"])
def test_meta_as_written(tmp_path, name):
    read = read_meta(write_meta(tmp_path, name), name)
    assert read.images == ("1.jpg", "2.jpg", "3.jpg", "3.jpg", "5.jpg")
    assert read.templates.tolist() == [1, 1, 7, 90, 4]
    assert read.media.tolist() == [69544, 69544, 12, 12, 3]
    assert read.landmarks.shape == (5, 5, 2)
    assert np.allclose(read.landmarks[2], TEMPLATE, atol=1e-3)
    assert np.allclose(read.scores, [0.5, 0.6, 0.7, 0.8, 0.9])
    assert read.landmarks.dtype == read.scores.dtype == np.float32
    assert read.first.tolist() == [1, 4, 1]
    assert read.second.tolist() == [7, 90, 90]
    assert read.same.tolist() == [False, True, False]
    first, second = meta.GALLERIES[name]
    assert [a.tolist() for a in read.galleries[first]] == [[1], [10]]
    assert [a.tolist() for a in read.galleries[second]] == [[4], [20]]
    assert [a.tolist() for a in read.probes] == [[90, 7], [20, 10]]


PAIRS, IMAGES, LANDMARKS = "template_pair_label.txt", "face_tid_mid.txt", "name_5pts_score.txt"
PROBE, GALLERY = "1N_probe_mixed.csv", "1N_gallery_1.csv"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (PAIRS, None, r"ijbc_template_pair_label.txt cannot be read \(No such file"),
        (IMAGES, None, r"ijbc_face_tid_mid.txt cannot be read"),
        (GALLERY, None, r"ijbc_1N_gallery_G1.csv cannot be read"),
        (IMAGES, "", "face_tid_mid.txt is empty"),
        (IMAGES, "1.jpg 1\n", "line 1 has 2 fields; a line is `image template media`"),
        (IMAGES, "1.jpg 1 x\n", "line 1 has 'x', not a whole number"),
        (
            IMAGES,
            FILES[IMAGES].replace("2.jpg", "9.jpg"),
            "5pts_score.txt line 2 is of 2.jpg but row 2 of ijbc_face_tid_mid.txt is of 9.jpg",
        ),
        (IMAGES, FILES[IMAGES] + "6.jpg 4 3\n", "has 5 rows but ijbc_face_tid_mid.txt has 6"),
        (LANDMARKS, FILES[LANDMARKS] + f"6.jpg {POINTS} 1\n", "has 6 rows .* has 5"),
        (LANDMARKS, FILES[LANDMARKS].replace(" 0.6", ""), "line 2 has 11 fields"),
        (LANDMARKS, FILES[LANDMARKS].replace("0.6", "o.6"), "line 2 has a field that is no number"),
        (LANDMARKS, FILES[LANDMARKS].replace(" 0.7\n", " nan\n"), "line 3 .* not finite"),
        (LANDMARKS, FILES[LANDMARKS].replace(" 0.7\n", " 1e99\n"), "line 3 .* not finite"),
        (PAIRS, "", "lists no pair"),
        (PAIRS, "1 7 0\n1 90\n", "line 2 has 2 fields; a line is `template template 0/1`"),
        (PAIRS, "1 7 0\n1 90 1 1\n90 1\n", "line 2 has 4 fields"),
        (PAIRS, "1 7 0\n1  1\n1  1\n1  1\n", "line 2 has 2 fields"),
        (PAIRS, "1 7 0\n\n1 9a 1\n", "line 3 has '9a', not a whole number"),
        (PAIRS, "1 7 0\n1 -7 1\n", "line 2 has '-7', not a whole number"),
        (PAIRS, "1 7 0\n1 99999999999999999999 1\n", "line 2 has '9+', not a whole number"),
        (PAIRS, "1 7 0\n1 90 2\n", "line 2 has the label 2; a label is 1"),
        (PAIRS, "1 7 0\n1 8 1\n", "line 2 has the template 8, which has no image"),
        (PAIRS, "1 7 0\n123456 7 1\n", "line 2 has the template 123456, which has no image"),
        (GALLERY, "1,10\n", "G1.csv has no header: line 1 is 1,10; put the names"),
        (GALLERY, "tid\n1\n", "G1.csv line 1 has fewer than two columns"),
        (GALLERY, "tid,sid\n1\n", "G1.csv line 2 has fewer than two columns"),
        (GALLERY, "tid,sid\n1,\n", "G1.csv line 2 has '', not a whole number"),
        (GALLERY, "tid,sid\n1,?\n", "G1.csv line 2 has '\\?', not a whole number"),
        (GALLERY, "tid,sid\n", "G1.csv lists no template"),
        (GALLERY, "tid,sid\n1,10\n8,10\n", "G1.csv line 3 has the template 8, which has no"),
        (GALLERY, "tid,sid\n1,10\n1,11\n", "line 3: template 1 has the subject 11, but 10 in"),
        (PROBE, "tid,sid\n7,10\n4,10\n", "mixed.csv line 3: template 4 has the subject 10, but 20"),
        (PROBE, "tid,sid\n7,10\n\n5,10\n", "mixed.csv line 4 has the template 5, which has no"),
        (PROBE, "tid,sid\n7,10\n90,30\n", "template 90 has the subject 30, which no gallery has"),
    ],
)
def test_meta_errors(tmp_path, file, text, message):
    with pytest.raises(UserError, match=message):
        read_meta(write_meta(tmp_path, **{file: text}))


def test_unknown_benchmark(tmp_path):
    with pytest.raises(UserError, match="unknown benchmark 'ijba'; choose ijbb or ijbc"):
        read_meta(tmp_path, "ijba")


@pytest.mark.parametrize("chunk", [5, 17, 1000])
@pytest.mark.parametrize(
    "dress",
    [
        lambda text: text,
        lambda text: text.rstrip("\n"),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace(" ", "\t"),
        lambda text: text.replace("\n", " \n\n").replace(" ", "  "),
        lambda text: "\ufeff" + text,
    ],
)
def test_pairs_in_chunks_and_other_dress(tmp_path, monkeypatch, chunk, dress):
    monkeypatch.setattr(meta, "_CHUNK_BYTES", chunk)
    rng = np.random.default_rng(0)
    rows = [(*rng.choice([1, 4, 7, 90], 2), rng.integers(2)) for _ in range(50)]
    text = "".join(f"{a} {b} {c}\n" for a, b, c in rows)
    read = read_meta(write_meta(tmp_path, **{PAIRS: dress(text)}))
    assert [*zip(read.first, read.second, read.same, strict=True)] == rows
    with pytest.raises(UserError, match="line 51 has 1 fields"):
        read_meta(write_meta(tmp_path, **{PAIRS: text + "7\n1 7 1\n"}))
    with pytest.raises(UserError, match="line 51 has the template 3"):
        read_meta(write_meta(tmp_path, **{PAIRS: text + "7 3 1\n1 7 1\n"}))


def test_rows_of(monkeypatch):
    known, wanted = np.array([2, 5, 11]), np.array([5, 0, 11, 12, -1, 2, 10**12, 3])
    expected = [1, -1, 2, -1, -1, 0, -1, -1]
    assert rows_of(known, wanted).tolist() == expected
    monkeypatch.setattr(meta, "_TABLE_ENTRIES", 3)
    assert rows_of(known, wanted).tolist() == expected
    assert rows_of(known[:0], wanted[:2]).tolist() == [-1, -1]


# --- alignment ------------------------------------------------------------------------------


def umeyama(points, target):
    """The published form, by singular values."""
    p, t = points - points.mean(0), target - target.mean(0)
    u, d, v = np.linalg.svd(t.T @ p / len(p))
    sign = np.array([1, np.sign(np.linalg.det(u) * np.linalg.det(v))])
    rotation = (u * sign) @ v
    scale = (d * sign).sum() / (p**2).sum(axis=1).mean()
    shift = target.mean(0) - scale * rotation @ points.mean(0)
    return np.column_stack([scale * rotation, shift])


def test_similarity_of_a_known_move():
    angle, scale, shift = 0.7, 1.8, np.array([4.0, -9.0])
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    found = similarity(TEMPLATE, TEMPLATE @ turn.T + shift)
    assert np.allclose(found, np.column_stack([turn, shift]))


@pytest.mark.parametrize("mirrored", [False, True])
def test_similarity_is_least_squares_and_umeyamas(mirrored):
    rng = np.random.default_rng(int(mirrored))
    points = rng.normal(size=(5, 2)) * 20 + 100
    target = points * [-1 if mirrored else 1, 1] + rng.normal(size=(5, 2))
    found = similarity(points, target)
    assert np.allclose(found, umeyama(points, target))
    # x′ = a x − b y + c, y′ = b x + a y + d
    x, y = points.T
    one, zero = np.ones(5), np.zeros(5)
    system = np.vstack([np.c_[x, -y, one, zero], np.c_[y, x, zero, one]])
    a, b, c, d = np.linalg.lstsq(system, target.T.ravel())[0]
    assert np.allclose(found, [[a, -b, c], [b, a, d]])


def test_similarity_errors():
    for equal in (np.full((5, 2), 33.3), np.full((5, 2), 1e8 / 3), np.zeros((5, 2))):
        with pytest.raises(UserError, match=r"the landmarks \[\[.* fix no position; detect"):
            similarity(equal, TEMPLATE)
    with pytest.raises(UserError, match="NaN or infinite values, first in point 3"):
        similarity(np.where(np.arange(5)[:, None] == 3, np.nan, TEMPLATE), TEMPLATE)
    with pytest.raises(UserError, match="4 points but 5 targets"):
        similarity(TEMPLATE[:4], TEMPLATE)
    with pytest.raises(UserError, match=r"shape \(n, 2\), not \(5, 3\)"):
        similarity(np.ones((5, 3)), TEMPLATE)


def naive_warp(image, matrix, size):
    """Exact bilinear values, not rounded."""
    back = np.linalg.inv(np.vstack([matrix, [0, 0, 1]]))
    height, width, channels = image.shape
    result = np.zeros((size, size, channels))
    for v in range(size):
        for u in range(size):
            x, y, _ = back @ [u, v, 1]
            left, top = int(np.floor(x)), int(np.floor(y))
            for row in (top, top + 1):
                for column in (left, left + 1):
                    if 0 <= row < height and 0 <= column < width:
                        weight = (1 - abs(x - column)) * (1 - abs(y - row))
                        result[v, u] += weight * image[row, column]
    return result


@pytest.mark.parametrize("scale", [0.4, 1.7, 6.0])
def test_warp_equals_a_naive_loop(scale):
    rng = np.random.default_rng(3)
    image = rng.integers(0, 256, (37, 29, 3), dtype=np.uint8)
    turn = scale * np.array([[np.cos(0.4), -np.sin(0.4)], [np.sin(0.4), np.cos(0.4)]])
    matrix = np.column_stack([turn, [6.3, -2.2]])  # a part of the result lies outside
    expected = naive_warp(image, matrix, 40)
    assert (expected == 0).any()
    # Single precision may round a value within 1e-3 of a half to the other side.
    assert np.abs(warp(image, matrix, 40) - expected).max() <= 0.5 + 1e-3


def test_align_of_a_face_in_place_and_of_a_shifted_grey_one():
    rng = np.random.default_rng(4)
    image = rng.integers(0, 256, (112, 112, 3), dtype=np.uint8)
    assert np.array_equal(align(image, TEMPLATE), image)
    grey = rng.integers(0, 256, (130, 140), dtype=np.uint8)
    found = align(grey, TEMPLATE + np.array([28, 20]))
    assert found.dtype == np.uint8
    assert np.array_equal(found[:110], np.repeat(grey[20:130, 28:, None], 3, axis=2))
    assert not found[110:].any()
    big = align(np.kron(image[..., 0], np.ones((2, 2), np.uint8)), TEMPLATE * 2, size=224)
    assert big.shape == (224, 224, 3)
    assert np.array_equal(big[::2, ::2, 0], image[..., 0])


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((4, 4, 3)), "uint8 of the shape .* not float64"),
        (np.zeros((4, 4, 4), np.uint8), r"not uint8 of the shape \(4, 4, 4\)"),
        (np.zeros((0, 4, 3), np.uint8), "has no pixel"),
    ],
)
def test_align_errors(image, message):
    with pytest.raises(UserError, match=message):
        align(image, TEMPLATE)


# --- pooling --------------------------------------------------------------------------------


def naive_pool(embeddings, templates, media, flipped, scores, media_mean, normalize_images):
    grouped = {}
    for row, vector in enumerate(embeddings.astype(np.float64)):
        vector = vector if flipped is None else vector + flipped[row]
        vector = vector / np.linalg.norm(vector) if normalize_images else vector
        vector = vector if scores is None else vector * scores[row]
        grouped.setdefault(templates[row], {}).setdefault(media[row], []).append(vector)
    ids = sorted(grouped)
    inner = np.mean if media_mean else np.sum
    sums = [sum(inner(vectors, axis=0) for vectors in grouped[i].values()) for i in ids]
    return ids, np.array([s / np.linalg.norm(s) for s in sums])


@pytest.mark.parametrize("media_mean", [True, False])
@pytest.mark.parametrize("normalize_images", [True, False])
@pytest.mark.parametrize("full", [True, False])
def test_pooling_equals_loops(monkeypatch, media_mean, normalize_images, full):
    monkeypatch.setattr("unibct.evaluation.protocols.ijb.templates._ROWS_AT_ONCE", 7)
    rng = np.random.default_rng(5)
    embeddings, flipped = rng.normal(size=(2, 100, 6)).astype(np.float32)
    templates = rng.choice([3, 11, 12, 900, 5000], 100)
    media = rng.integers(0, 4, 100)  # the same ids in every template
    options = {
        "flipped": flipped if full else None,
        "scores": rng.uniform(0.2, 1, 100) if full else None,
        "media_mean": media_mean,
        "normalize_images": normalize_images,
    }
    ids, vectors = pool_templates(embeddings, templates, media, **options)
    expected_ids, expected = naive_pool(embeddings, templates, media, **options)
    assert ids.tolist() == expected_ids
    assert vectors.dtype == np.float32
    assert np.allclose(vectors, expected, atol=1e-6)


def test_pooling_by_hand():
    """Media 1 has two frames: their mean counts as one image."""
    vectors = np.array([[2.0, 0], [4, 0], [0, 3], [0, 5]])
    ids, pooled = pool_templates(vectors, [8, 8, 8, 2], [1, 1, 2, 1])
    assert ids.tolist() == [2, 8]
    assert np.allclose(pooled, [[0, 1], [2**-0.5, 2**-0.5]])
    _, summed = pool_templates(vectors, [8, 8, 8, 2], [1, 1, 2, 1], media_mean=False)
    assert np.allclose(summed[1], np.array([6, 3]) / 45**0.5)
    _, scored = pool_templates(vectors, [8, 8, 8, 2], [1, 1, 2, 1], scores=[1, 0, 1 / 3, 1])
    assert np.allclose(scored[1], [2**-0.5, 2**-0.5])


def test_pooling_errors():
    good = np.ones((3, 2))
    bad = good * [[1], [np.inf], [1]]
    with pytest.raises(UserError, match="embeddings has NaN or infinite values in row 1"):
        pool_templates(bad, [1, 1, 2], [1, 1, 1])
    with pytest.raises(UserError, match="flipped has NaN or infinite values in row 1"):
        pool_templates(good, [1, 1, 2], [1, 1, 1], flipped=bad)
    with pytest.raises(UserError, match="pooled vector of template 7 is zero"):
        pool_templates(good, [1, 1, 7], [1, 1, 1], flipped=good * [[1], [1], [-1]])
    with pytest.raises(UserError, match="scores has a NaN or infinite value in row 2"):
        pool_templates(good, [1, 1, 2], [1, 1, 1], scores=[1, 1, np.nan])
    with pytest.raises(UserError, match=r"scores must have the shape \(3,\)"):
        pool_templates(good, [1, 1, 2], [1, 1, 1], scores=[1, 1])
    with pytest.raises(UserError, match=r"flipped has the shape \(2, 2\), but embeddings"):
        pool_templates(good, [1, 1, 2], [1, 1, 1], flipped=good[:2])
    with pytest.raises(UserError, match="media has 2 entries, but there are 3 rows"):
        pool_templates(good, [1, 1, 2], [1, 1])
    with pytest.raises(UserError, match=r"embeddings must have the shape \(images, dim\)"):
        pool_templates(good[0], [1], [1])
    with pytest.raises(UserError, match="embeddings must be floating point"):
        pool_templates(good.astype(int), [1, 1, 2], [1, 1, 1])


# --- pairs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("entries", [1, 300, 10_000_000])
@pytest.mark.parametrize("gain", [0, 2, 10**9])  # gathered, mixed, product
@pytest.mark.parametrize("ordered", [True, False])
def test_pair_scores_equal_gathered_rows(monkeypatch, entries, gain, ordered):
    monkeypatch.setattr(pairs, "_PRODUCT_ENTRIES", entries)
    monkeypatch.setattr(pairs, "_PRODUCT_GAIN", gain)
    monkeypatch.setattr(pairs, "_PAIRS_AT_ONCE", 50)
    monkeypatch.setattr(pairs, "_GATHERED_AT_ONCE", 30)
    rng = np.random.default_rng(6)
    first, second = rng.normal(size=(40, 8)), rng.normal(size=(70, 8)).astype(np.float32)
    rows = 39 - 3 * (rng.integers(0, 12, 900) * rng.integers(0, 12, 900) // 12)
    columns = 2 + 2 * rng.integers(0, 30, 900).astype(np.int32)
    rows = np.sort(rows) if ordered else rows
    expected = (first[rows] * second[columns]).sum(axis=1)
    assert np.allclose(pair_scores(first, second, rows, columns), expected, atol=1e-5)
    assert np.allclose(pair_scores(second, first, columns, rows), expected, atol=1e-5)


def grouped(rows, rng):
    """Equal rows together, the groups in any order."""
    place = rng.permutation(rows.max(initial=0) + 1)
    return rows[np.argsort(place[rows], kind="stable")]


ORDERS = {
    "random": lambda rows, rng: rows,
    "ascending": lambda rows, rng: np.sort(rows),
    "descending": lambda rows, rng: np.sort(rows)[::-1],
    "grouped": grouped,
    "grouped but for one": lambda rows, rng: np.append(grouped(rows, rng)[1:], rows[:1]),
    "one row": lambda rows, rng: np.repeat(rows[:1], len(rows)),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint8])
def test_pair_scores_whatever_the_order_and_the_number(monkeypatch, order, kind):
    rng = np.random.default_rng(len(order))
    for count in (0, 1, 2, 7, 300):
        for entries in (1, 40, 10_000_000):
            for name, value in {
                "_PRODUCT_ENTRIES": entries,
                "_PRODUCT_GAIN": int(rng.choice([0, 1, 3, 10**6])),
                "_PAIRS_AT_ONCE": int(rng.integers(1, 60)),
                "_GATHERED_AT_ONCE": int(rng.integers(1, 60)),
            }.items():
                monkeypatch.setattr(pairs, name, value)
            first = rng.normal(size=(rng.integers(1, 50), 5)).astype(np.float32)
            second = first if rng.random() < 0.3 else rng.normal(size=(rng.integers(1, 50), 5))
            rows = ORDERS[order](rng.integers(0, len(first), count), rng).astype(kind)
            columns = rng.integers(0, len(second), count).astype(kind)
            expected = (first[rows] * second[columns]).sum(axis=1)
            found = pair_scores(first, second, rows, columns)
            assert found.dtype == np.float32
            assert np.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(("limit", "height"), [(65_536, 1), (65_537, 1), (131_073, 2)])
def test_blocks_of_very_many_rows(limit, height):
    """More blocks than 16 bits count: each pair is in one block, which has its row."""
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.permutation(limit), rng.integers(0, limit, 100)])
    times = np.zeros(len(rows), dtype=int)
    with ThreadPoolExecutor(2) as threads:
        for block, members in pairs._blocks(rows, limit, height, threads):
            assert len(block) <= height
            assert set(rows[members]) == set(block)
            times[members] += 1
    assert (times == 1).all()


def test_an_error_in_a_thread_is_not_lost(monkeypatch):
    def fail(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr(pairs, "_PRODUCT_GAIN", 0)
    monkeypatch.setattr(np, "einsum", fail)
    with pytest.raises(MemoryError):
        pair_scores(np.eye(3), np.eye(3), [0, 1, 2], [0, 1, 1])


def test_pair_scores_of_none_and_errors():
    first = np.eye(3)
    none = np.zeros(0, dtype=np.int64)
    assert pair_scores(first, first, none, none).shape == (0,)
    with pytest.raises(UserError, match="second_rows has 3 in pair 1, but there are 3 templates"):
        pair_scores(first, first, [0, 1], [2, 3])
    with pytest.raises(UserError, match="first_rows has -1 in pair 0"):
        pair_scores(first, first, [-1, 1], [2, 0])
    with pytest.raises(UserError, match="first_rows has 2 entries but second_rows has 1"):
        pair_scores(first, first, [0, 1], [2])
    with pytest.raises(UserError, match="dimension 3 but second has dimension 2"):
        pair_scores(first, first[:, :2], [0], [0])


# --- searches -------------------------------------------------------------------------------


def test_open_search_by_hand():
    search = OpenSearch(
        mate=np.array([0.9, 0.7, 0.6, 0.3]),
        other=np.array([0.2, 0.8, 0.1, 0.1]),
        unmated=np.array([0.5, 0.1, 0.65, 0.2, 0.4, 0.3, 0.0, 0.35, 0.15, 0.25]),
    )
    assert search.tpir(0.01) == 0.25  # at 0.65: only the first, the second has a better other
    assert search.tpir(0.1) == 0.25
    assert search.tpir(0.2) == 0.5  # at 0.5
    assert search.tpir(0.5) == 0.5  # at 0.3: a score equal to the threshold is no hit
    assert search.tpir(1.0) == 0.75  # at 0.0
    with pytest.raises(UserError, match=r"lies in \(0, 1\], not 0"):
        search.tpir(0)
    with pytest.raises(UserError, match="no probe is without a mate"):
        replace(search, unmated=np.zeros(0)).tpir(0.1)
    with pytest.raises(UserError, match="no probe is with a mate"):
        replace(search, mate=np.zeros(0), other=np.zeros(0)).tpir(0.1)


def test_identification_equals_naive_loops(monkeypatch):
    monkeypatch.setattr("unibct.evaluation.protocols.ijb.search._SCORES_AT_ONCE", 300)
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(30, 6))
    unit = lambda v: v / np.linalg.norm(v, axis=-1, keepdims=True)  # noqa: E731
    query_subjects = rng.integers(0, 30, 120)
    query = unit(centres[query_subjects] + 0.9 * rng.normal(size=(120, 6)))
    parts = {"G1": rng.permutation(14), "G2": np.append(14 + rng.permutation(16), 20)}
    galleries = {
        name: (unit(centres[subjects] + 0.9 * rng.normal(size=(len(subjects), 6))), subjects + 100)
        for name, subjects in parts.items()
    }
    test = identification_test(query, query_subjects + 100, galleries)
    merged = np.concatenate([vectors for vectors, _ in galleries.values()])
    subjects = np.concatenate([subjects for _, subjects in galleries.values()])
    assert np.array_equal(test.ranks, mate_ranks(query @ merged.T, query_subjects + 100, subjects))
    assert test.top(1) < test.top(5) < test.top(10) < 1
    tpirs = {}
    for fpir in (0.01, 0.1, 0.3):
        rates = []
        for vectors, subjects in galleries.values():
            unmated, hits = [], []
            for vector, subject in zip(query, query_subjects + 100, strict=True):
                scores = vectors @ vector
                if subject not in subjects:
                    unmated.append(max(scores))
            threshold = sorted(unmated, reverse=True)[max(int(len(unmated) * fpir) - 1, 0)]
            for vector, subject in zip(query, query_subjects + 100, strict=True):
                scores = vectors @ vector
                if subject in subjects:
                    mate, other = max(scores[subjects == subject]), max(scores[subjects != subject])
                    hits.append(mate > threshold and mate > other)
            rates.append(np.mean(hits))
        tpirs[fpir] = np.mean(rates)
        assert test.tpir(fpir) == pytest.approx(tpirs[fpir])
    assert tpirs[0.01] < tpirs[0.3]
    with pytest.raises(UserError, match="k must be at least 1, not 0"):
        test.top(0)


def test_identification_errors():
    galleries = {"G1": (np.eye(3), np.array([1, 2, 3]))}
    with pytest.raises(UserError, match="probe row 1 has the subject 4, which no gallery has"):
        identification_test(np.eye(3)[:2], [1, 4], galleries)
    with pytest.raises(UserError, match="query has dimension 2 but G1 has dimension 3"):
        identification_test(np.eye(2), [1, 2], galleries)
    with pytest.raises(UserError, match="subjects of G1 has 2 entries"):
        identification_test(np.eye(3), [1, 2, 3], {"G1": (np.eye(3), np.array([1, 2]))})


# --- bootstrap ------------------------------------------------------------------------------


def scored_pairs(seed=8, subjects=9):
    rng = np.random.default_rng(seed)
    test = VerificationTest(rng.normal(1.5, 1, 80).round(2), rng.normal(0, 1, 3000).round(2))
    return test, rng.integers(0, subjects, 80), rng.integers(0, subjects, 3000) ** 2 // subjects


@pytest.mark.parametrize("far", [1e-4, 0.01, 0.2, 1.0])
def test_sampled_tar_equals_a_naive_resample(monkeypatch, far):
    monkeypatch.setattr(bootstrap, "_ENTRIES_AT_ONCE", 5000)
    test, genuine_subjects, impostor_subjects = scored_pairs()
    draws = subject_draws(9, seed=1, repeats=25)
    draws[0] = 1
    found = sampled_tar(test, genuine_subjects, impostor_subjects, draws, far)
    assert found[0] == pytest.approx(test.tars([far])[far])
    for value, counts in zip(found, draws, strict=True):
        genuine = np.repeat(test.genuine, counts[genuine_subjects])
        impostor = np.repeat(test.impostor, counts[impostor_subjects])
        assert value == pytest.approx(tar_at_far(genuine, impostor, [far])[far])


def test_sampled_tar_looks_further_down_when_a_draw_misses_the_highest_impostors():
    """All high impostors are of subject 0, which is not drawn."""
    impostor = np.concatenate([np.linspace(5, 4, 3000), np.linspace(1, 0, 3000)])
    test = VerificationTest(np.array([2.0, 0.995, 0.5]), impostor)
    subject = np.repeat([0, 1], 3000)
    draws = np.array([[0, 2], [2, 0], [1, 1]])
    found = sampled_tar(test, np.array([1, 1, 1]), subject, draws, 0.01)
    threshold = impostor[3000 + 30]
    assert found[0] == np.mean(np.array([2.0, 0.995, 0.5]) > threshold) == 2 / 3
    assert found[1:].tolist() == [0, 0]  # none is genuine; none is above


def test_sampled_top_equals_a_naive_resample():
    ranks, subjects = np.array([0, 3, 1, 0, 7]), np.array([0, 0, 1, 2, 2])
    draws = np.array([[1, 1, 1], [2, 0, 1], [0, 0, 3]])
    assert np.allclose(sampled_top(ranks, subjects, draws, 1), [2 / 5, 3 / 6, 1 / 2])
    assert np.allclose(sampled_top(ranks, subjects, draws, 5), [4 / 5, 5 / 6, 1 / 2])


def test_draws():
    draws = subject_draws(5, seed=3, repeats=40)
    assert draws.shape == (40, 5)
    assert (draws.sum(axis=1) == 5).all()
    assert np.array_equal(draws, subject_draws(5, seed=3, repeats=40))


# --- the whole ------------------------------------------------------------------------------


def benchmark_of(subjects=60, probes=4, seed=9):
    """Gallery templates 1000 + subject, probe templates from 5000; all pairs of them."""
    rng = np.random.default_rng(seed)
    enrolled = np.arange(subjects)
    half = rng.permutation(subjects)
    probe_subjects = rng.permutation(np.repeat(enrolled, probes))
    probe_templates = 5000 + 3 * np.arange(len(probe_subjects))
    first = np.repeat(1000 + enrolled, len(probe_templates))
    second = np.tile(probe_templates, subjects)
    same = np.repeat(enrolled, len(probe_templates)) == np.tile(probe_subjects, subjects)
    templates = np.concatenate([1000 + enrolled, probe_templates])
    none = np.zeros(0, dtype=np.int64)
    read = Meta(
        images=("x.jpg",),
        templates=templates,
        media=none,
        landmarks=np.zeros((0, 5, 2), np.float32),
        scores=np.zeros(0, np.float32),
        first=first,
        second=second,
        same=same,
        galleries={
            "G1": Subjects(1000 + half[:30], half[:30]),
            "G2": Subjects(1000 + half[30:], half[30:]),
        },
        probes=Subjects(probe_templates, probe_subjects),
    )
    return read, templates, np.concatenate([enrolled, probe_subjects])


def model_of(templates, subjects, noise, seed):
    centres = np.random.default_rng(0).normal(size=(60, 12))
    rng = np.random.default_rng(seed)
    vectors = centres[subjects] + noise * rng.normal(size=(len(subjects), 12))
    shuffled = rng.permutation(len(templates))
    return templates[shuffled], vectors[shuffled].astype(np.float32)


def test_evaluation_equals_naive_scores():
    read, templates, subjects = benchmark_of()
    old, new = (model_of(templates, subjects, n, s) for n, s in ((1.2, 1), (0.5, 2)))
    found = evaluate_templates(read, old, new, far=0.05, repeats=300)
    vector = {
        name: {t: v / np.linalg.norm(v) for t, v in zip(*model, strict=True)}
        for name, model in (("old", old), ("new", new))
    }
    for name, test in found.verification.items():
        query, gallery = name.split("→")  # the query is the probe's side, the second column
        scores = np.array(
            [
                vector[gallery][a] @ vector[query][b]
                for a, b in zip(read.first, read.second, strict=True)
            ]
        )
        assert np.allclose(test.genuine, scores[read.same], atol=1e-6)
        assert np.allclose(test.impostor, scores[~read.same], atol=1e-6)
    for name, test in found.identification.items():
        query, gallery = name.split("→")
        hits = []
        for template, subject in zip(*read.probes, strict=True):
            scores = [vector[gallery][1000 + s] @ vector[query][template] for s in range(60)]
            hits.append(np.argmax(scores) == subject)
        assert test.top(1) == pytest.approx(np.mean(hits))
    assert [*found.verification] == ["old→old", "new→old", "new→new", "old→new"]
    assert [*found.identification] == [*found.verification]
    assert [c.metric for c in found.criteria] == ["TAR@5e-2", "top-1", "top-5"]
    for criterion in found.criteria:
        assert criterion.cross == found.metrics("new→old")[criterion.metric]
        assert criterion.old_self == found.metrics("old→old")[criterion.metric]
        assert criterion.low < criterion.difference < criterion.high
    assert found.verdict == "compatible"
    assert {"top-10", "TPIR@0.01", "TPIR@0.1", "TAR@1e-1"} <= set(found.metrics("new→new"))
    assert found.metrics("old→new", rule="nearest").keys() == found.metrics("new→old").keys()
    assert found.note.startswith("old→new has the enrolled side from the new model")
    tars = [found.metrics("new→old")[f"TAR@{far}"] for far in ("5e-2", "1e-1")]
    assert all(low <= high for low, high in pairwise(tars))
    roc = found.verification["new→old"].roc()
    assert roc.tar[-1] == roc.far[-1] == 1


def test_the_sides_are_told_by_the_galleries_and_verdicts_follow():
    read, templates, subjects = benchmark_of()
    old, new = (model_of(templates, subjects, n, s) for n, s in ((1.2, 1), (0.5, 2)))
    swapped = replace(read, first=read.second, second=read.first)
    a, b = (evaluate_templates(r, old, new, repeats=20) for r in (read, swapped))
    assert a.criteria == b.criteria
    assert a.criteria[0].metric == "TAR@1e-1"  # 60 subjects carry no smaller rate
    assert a.as_json()["note"].startswith("TAR@1e-1 instead of TAR@1e-4: 60 classes cannot")
    assert evaluate_templates(read, old, old, repeats=20).verdict == "within noise"
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(12, 12)))[0]
    foreign = evaluate_templates(read, old, (new[0], new[1] @ rotation), repeats=20)
    assert foreign.verdict == "not compatible"
    assert foreign.metrics("new→new") == pytest.approx(a.metrics("new→new"), abs=1e-3)


def test_evaluation_errors():
    read, templates, subjects = benchmark_of()
    old = model_of(templates, subjects, 1, 1)
    order = np.argsort(old[0])
    ids, vectors = old[0][order], old[1][order]
    with pytest.raises(UserError, match="the new model has no vector of template 5717"):
        evaluate_templates(read, old, (ids[:-1], vectors[:-1]))
    with pytest.raises(UserError, match="the old model has no vector of template 1000"):
        evaluate_templates(read, (ids[1:], vectors[1:]), old)
    with pytest.raises(UserError, match="new has the template 1001 twice"):
        evaluate_templates(read, old, (np.where(ids == 1000, 1001, ids), vectors))
    with pytest.raises(UserError, match="new has dimension 11 but old has dimension 12"):
        evaluate_templates(read, old, (ids, vectors[:, 1:]))
    with pytest.raises(UserError, match="old has NaN or infinite values, first in row 0"):
        evaluate_templates(read, (ids, np.full_like(vectors, np.nan)), old)
    with pytest.raises(UserError, match="template ids of new has 299 entries"):
        evaluate_templates(read, old, (ids[1:], vectors))
    lost = replace(read, probes=Subjects(*(part[1:] for part in read.probes)))
    with pytest.raises(UserError, match="template 5000 of the pairs is in no file of probes"):
        evaluate_templates(lost, old, old)
    with pytest.raises(UserError, match="seed must be at least 0 and repeats at least 1"):
        evaluate_templates(read, old, old, repeats=0)


def test_from_files_to_a_verdict(tmp_path):
    """Written meta files, images' embeddings, pooled templates, tests: one template by hand."""
    read = read_meta(write_meta(tmp_path))
    vectors = np.array([[1.0, 0], [3, 0], [1, 0.2], [0.1, 1], [0, 2]])
    pooled = pool_templates(vectors, read.templates, read.media, scores=read.scores)
    assert pooled.ids.tolist() == [1, 4, 7, 90]
    found = evaluate_templates(read, pooled, pooled, repeats=5)
    assert found.metrics("new→old")["top-1"] == 1
    assert found.verdict == "within noise"
