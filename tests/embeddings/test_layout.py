import numpy as np
import pytest

from unibct.embeddings.layout import (
    FileDigest,
    Shard,
    check_file,
    file_digest,
    ids_file,
    labels_file,
    map_array,
    read_text,
    shard_from_json,
    shard_is_whole,
    vectors_file,
)
from unibct.errors import UserError

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # SHA-256 of "abc"


def test_names_are_numbered():
    names = [vectors_file(7), labels_file(12), ids_file(0)]
    assert names == ["vectors-000007.npy", "labels-000012.npy", "ids-000000.txt"]


def test_a_shard_is_whole_if_all_its_files_are(tmp_path):
    (tmp_path / "ids").write_text("abc")
    assert file_digest(tmp_path / "ids") == FileDigest(3, ABC)
    entry = {"first": 4, "rows": 1, "files": {"ids": {"bytes": 3, "sha256": ABC}}}
    shard = shard_from_json(entry)
    assert shard == Shard(4, 1, {"ids": FileDigest(3, ABC)})
    assert shard_is_whole(tmp_path, shard)
    (tmp_path / "ids").write_text("abd")
    assert not shard_is_whole(tmp_path, shard)
    (tmp_path / "ids").unlink()
    assert not shard_is_whole(tmp_path, shard)


def test_a_wrong_file_is_named(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(UserError, match=r"file cannot be read \(No such file"):
        check_file(path, FileDigest(3, ABC), verify=False)
    path.write_text("abd")
    check_file(path, FileDigest(3, ABC), verify=False)
    with pytest.raises(UserError, match=r"file is damaged \(its checksum differs"):
        check_file(path, FileDigest(3, ABC), verify=True)
    with pytest.raises(UserError, match="3 bytes instead of 4"):
        check_file(path, FileDigest(4, ABC), verify=False)
    with pytest.raises(UserError, match=r"not a whole .npy file.*embed the images again"):
        map_array(path, (2,), np.int64)
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"cannot be read .*embed the images again"):
        read_text(path)


def test_a_mapped_array_has_the_expected_shape_and_type(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    assert map_array(tmp_path / "a.npy", (3,), np.int64).tolist() == [0, 1, 2]
    for shape, dtype in (((2,), np.int64), ((3,), np.float32)):
        with pytest.raises(UserError, match=r"int64 of shape \(3,\), but embeddings.json says"):
            map_array(tmp_path / "a.npy", shape, dtype)
