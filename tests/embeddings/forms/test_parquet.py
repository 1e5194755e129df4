import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unibct.embeddings.forms.parquet import read, recognises
from unibct.errors import UserError


def write_table(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def test_a_table_by_someone_else(tmp_path):
    path = write_table(
        tmp_path / "old.parquet",
        id=[7, 8],
        vector=[[1.0, 2.0], [3.0, 4.0]],  # double, lists of any length
        label=pa.array(["a", "b"]).dictionary_encode(),
        price=[1, 2],
    )
    embeddings = read(path)
    assert embeddings.ids == ("7", "8")
    assert embeddings.vectors.tolist() == [[1, 2], [3, 4]]
    assert embeddings.vectors.dtype == np.float32
    assert embeddings.class_names == ("a", "b")


def test_texts_may_be_bytes(tmp_path):
    """As some programs write them; the name of an image is not b'name'."""
    path, vector = tmp_path / "old.parquet", [[1.0, 2.0], [3.0, 4.0]]
    label = pa.array([b"x", b"\xc3\xa9"])
    embeddings = read(write_table(path, id=pa.array([b"a", b"b"]), vector=vector, label=label))
    assert embeddings.ids == ("a", "b")
    assert embeddings.class_names == ("x", "é")
    with pytest.raises(UserError, match=r"row 1: the id b'\\xff' is not UTF-8"):
        read(write_table(path, id=pa.array([b"a", b"\xff"]), vector=vector))
    with pytest.raises(UserError, match="row 1 has no label"):
        read(write_table(path, id=["a", "b"], vector=vector, label=[1.0, float("nan")]))


def test_a_folder_of_parts_is_read_in_the_order_of_their_names(tmp_path):
    for number in (1, 0):
        write_table(tmp_path / f"part-{number}.parquet", id=[f"{number}"], vector=[[number + 1.0]])
    assert recognises(tmp_path)
    embeddings = read(tmp_path)
    assert embeddings.ids == ("0", "1")
    assert embeddings.vectors.tolist() == [[1], [2]]
    write_table(tmp_path / "part-2.parquet", id=["2"], vector=[[1.0, 2.0]])
    wider = r"part-2.parquet has vectors of dimension 2, and .*0.parquet of 1"
    with pytest.raises(UserError, match=wider):
        read(tmp_path)


def test_bad_tables_name_row_and_id(tmp_path):
    path, two = tmp_path / "old.parquet", ["a", "b"]
    for columns, message in [
        ({"id": ["a"]}, "lacks the column `vector`"),
        (
            {"id": two, "vector": [[1.0, 2], [1.0, 2, 3]]},
            r"row 1 \('b'\) has dimension 3, .* 0 has 2",
        ),
        ({"id": two, "vector": [[1.0, 2], None]}, r"row 1 \('b'\) has no vector"),
        ({"id": pa.array([None, "b"]), "vector": [[1.0], [2.0]]}, "row 0 has no id"),
        ({"id": ["a"], "vector": ["x"]}, "must hold lists"),
        ({"id": ["a"], "vector": [[1]]}, "int64 values"),
    ]:
        with pytest.raises(UserError, match=message):
            read(write_table(path, **columns))
    path.write_bytes(b"PAR1 but not really")
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        read(path)


def test_a_missing_extra_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'unibct\[parquet\]'"):
        read(tmp_path / "old.parquet")


def test_parts_by_two_models_or_with_labels_in_some_are_refused(tmp_path):
    def part(name, model, **columns):
        metadata = {b"unibct.fingerprint": model} if model else {}
        table = pa.table({"id": [name], "vector": [[1.0]]} | columns)
        pq.write_table(table.replace_schema_metadata(metadata), tmp_path / f"{name}.parquet")

    part("a", b"one")
    part("b", b"one")
    assert read(tmp_path).fingerprint == "one"
    part("c", b"")
    assert read(tmp_path).fingerprint == ""
    for model, columns, message in [
        (b"two", {}, r"a.parquet was made by model one, and .*d.parquet by model two"),
        (b"one", {"label": ["x"]}, r"d.parquet has a column `label`, and .*a.parquet has none"),
    ]:
        part("d", model, **columns)
        with pytest.raises(UserError, match=message):
            read(tmp_path)
