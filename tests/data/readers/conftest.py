import pickle
import struct

import pytest

from tests.data.example_images import jpeg, png
from tests.data.readers.example_records import MAGIC
from tests.data.readers.example_tars import write_tar


@pytest.fixture
def shards(tmp_path):
    write_tar(
        tmp_path / "s-00.tar",
        [
            ("a/0001.png", png(1)),
            ("a/0001.cls", b"7\n"),
            ("a/0001.pyd", pickle.dumps(print)),  # never opened
            ("0002.json", b'{"label": "cat", "caption": "x"}'),
            ("0002.png", png(2)),
            ("0002.seg.png", png(99)),  # of another kind: not the sample's image
            ("0003.txt", b"a caption without an image"),
        ],
    )
    write_tar(tmp_path / "s-01.tar", [("0001.PNG", png(3)), ("0001.cls", b"7")])
    return tmp_path


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A folder in InsightFace's layout, written from the page of the format, not by our writer."""
    root = tmp_path_factory.mktemp("ms1m")
    people = [3, 1, 2]
    contents, first = {}, 1
    ranges = []
    for person, count in enumerate(people):
        for key in range(first, first + count):
            header = struct.pack("<IfQQ", 0, person, key, 0)
            contents[key] = header + jpeg(10 * key)
        ranges.append((first, first + count))
        first += count
    for number, (begin, end) in enumerate(ranges):
        contents[first + number] = struct.pack("<IfQQff", 2, 0, 0, 0, begin, end)
    contents[0] = struct.pack("<IfQQff", 2, 0, 0, 0, first, first + len(people))
    index, data = [], b""
    for key, content in contents.items():  # key 0 last
        index.append(f"{key}\t{len(data)}\n")
        data += MAGIC + struct.pack("<I", len(content)) + content + bytes(-len(content) % 4)
    (root / "train.rec").write_bytes(data)
    (root / "train.idx").write_text("".join(reversed(index)))  # any order
    (root / "property").write_text("3,112,112")
    return root
