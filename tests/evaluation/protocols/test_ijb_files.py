import numpy as np
import pytest

from tests.evaluation.protocols.ijb_meta_files import FILES, POINTS, write_meta
from unibct.data.readers import open_images
from unibct.errors import UserError
from unibct.evaluation.protocols import ijb_files as meta
from unibct.evaluation.protocols.ijb_faces import TEMPLATE
from unibct.evaluation.protocols.ijb_files import read_meta, rows_of

PAIRS, IMAGES, LANDMARKS = "template_pair_label.txt", "face_tid_mid.txt", "name_5pts_score.txt"
PROBE, GALLERY = "1N_probe_mixed.csv", "1N_gallery_1.csv"


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
            "5pts_score.txt line 2 has the image 2.jpg but row 2 of "
            "ijbc_face_tid_mid.txt has 9.jpg",
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
    monkeypatch.setattr(meta, "_LARGEST_TABLED_ID", 3)
    assert rows_of(known, wanted).tolist() == expected
    assert rows_of(known[:0], wanted[:2]).tolist() == [-1, -1]


def test_the_miniatures_have_the_true_layout(faces_root):
    images = open_images(faces_root / "ms1mv3")
    assert (len(images), len(images.class_names)) == (120, 20)
    assert images.read(images.ids[0]).shape == (112, 112, 3)
    assert (faces_root / "ms1mv3/property").read_text() == "20,112,112"
    meta = read_meta(faces_root / "ijbc")
    assert len(meta.images) == 12 * 12
    assert len(meta.first) == 12 * 24
    assert meta.same.sum() == 24
    assert [len(g.templates) for g in meta.galleries.values()] == [6, 6]
