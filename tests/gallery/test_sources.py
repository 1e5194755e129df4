import numpy as np
import pytest

from tests.gallery.toys import OLD, toy_images
from unibct.embedders import Opener
from unibct.embeddings.extraction import embed
from unibct.embeddings.forms import write_embeddings
from unibct.embeddings.store import Embeddings
from unibct.errors import UserError
from unibct.gallery.sources import open_source, parse_scalar, parse_where, with_fingerprint


@pytest.fixture
def embeddings():
    return embed(Opener().open(OLD), toy_images())


def test_images_have_labels_and_vectors(embeddings):
    source = open_source(toy_images())
    assert source.labels[0] == "c0"
    vectors = source.vectors(Opener().open(OLD))
    np.testing.assert_array_equal(vectors, embeddings.vectors)


@pytest.mark.parametrize(
    ("form", "name"), [("npy", "e.npy"), ("parquet", "e.parquet"), ("folder", "e")]
)
def test_embeddings_in_any_form(embeddings, tmp_path, form, name):
    write_embeddings(embeddings, tmp_path / name, form)
    for data in (tmp_path / name, f"embeddings:{tmp_path / name}"):
        source = open_source(data)
        assert source.ids == embeddings.ids
        assert source.labels[-1] == "c5"
        np.testing.assert_allclose(source.vectors(None), embeddings.vectors, atol=1e-6)


def test_an_array_is_no_path_and_is_told_what_to_be(embeddings):
    with pytest.raises(UserError, match=r"not ndarray; a search takes vectors as Queries"):
        open_source(np.asarray(embeddings.vectors))


def test_an_id_that_two_rows_have_is_refused(embeddings):
    labels = np.zeros(3, dtype=np.int64)
    doubled = Embeddings(embeddings.vectors[:3], ("a", "b", "a"), labels, ("c",), "f" * 32)
    with pytest.raises(UserError, match="the embeddings, row 2 has the id 'a' of row 0"):
        open_source(doubled)


def test_a_list_chooses_rows(embeddings, tmp_path):
    write_embeddings(embeddings, tmp_path / "e.npy", "npy")
    (tmp_path / "list.txt").write_text("c1/2\nc0/1\n")
    source = open_source(tmp_path / "e.npy", list_file=tmp_path / "list.txt")
    assert source.ids == ("c0/1", "c1/2")
    assert source.labels == ("c0", "c1")


def test_metadata_from_csv_and_json_lines(tmp_path):
    (tmp_path / "m.csv").write_text("id,colour,price,new\nc0/1,red,3,true\nc1/1,,2.5,\n")
    (tmp_path / "m.jsonl").write_text('{"id": "c0/1", "colour": "red", "price": 3, "new": true}\n')
    for name in ("m.csv", "m.jsonl"):
        source = open_source(toy_images(), metadata=tmp_path / name)
        assert source.metadata[1] == {"colour": "red", "price": 3, "new": True}
    (tmp_path / "bad.csv").write_text("id,colour\nnobody,red\n")
    with pytest.raises(UserError, match="'nobody'"):
        open_source(toy_images(), metadata=tmp_path / "bad.csv")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m.csv", "id,colour\nc0/1,red\nc0/1,red\n", "line 3: the id 'c0/1' is there twice"),
        ("m.csv", "id,colour,size\nc0/0,red\n", "line 2: there are fewer cells than the 3 names"),
        ("m.csv", "id,colour\nc0/0,red,big\n", "line 2: there are more cells than the 2 names"),
        ("m.csv", "id,size,size\nc0/0,1,2\n", "line 1: the column 'size' is there twice"),
        ("m.jsonl", '\n{"id"', "line 2: this is no JSON"),
        ("m.jsonl", "[1, 2]", "line 1: a line is an object such as"),
        ("m.jsonl", '{"id": ["x"]}', r"line 1: the id \['x'\] is no text"),
        ("m.jsonl", '{"id": "c0/0", "t": "\\ud800"}', "line 1: no database keeps t"),
        ("m.jsonl", '{"id": "c0/0", "n": 9223372036854775808}', "line 1: no database keeps n"),
    ],
)
def test_bad_metadata_is_named_by_file_and_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=rf"{name}, {message}"):
        open_source(toy_images(), metadata=tmp_path / name)


def test_scalars_are_read_as_they_look():
    texts = ["true", "false", "3", "-2.5", "1e-05", "red", "nan"]
    values = [True, False, 3, -2.5, 1e-05, "red", "nan"]
    assert [parse_scalar(text) for text in texts] == values


@pytest.mark.parametrize(
    "text", ["007", "2024_01", "1_000", " 12", "१२", "1.50", "1e3", "+3", "-0", "9" * 19]
)
def test_what_is_not_written_as_a_number_stays_a_text(text):
    assert parse_scalar(text) == text


def test_only_embeddings_can_be_said_to_be_made_by_a_model(embeddings):
    assert with_fingerprint(open_source(embeddings), "f").embeddings.fingerprint == "f"
    with pytest.raises(UserError, match="are images"):
        with_fingerprint(open_source(toy_images()), "f")


def test_a_filter_as_texts():
    where = parse_where(["colour=red", "colour=blue", "price=3", "note=a=b"])
    assert where == {"colour": ["red", "blue"], "price": [3, "3"], "note": ["a=b"]}
    for text in ("colour", "=red"):
        with pytest.raises(UserError, match=f"the filter {text!r}: write KEY=VALUE"):
            parse_where([text])
