"""Small RecordIO files for tests."""

import io

from unibct.data.readers.recordio import pack_record, write_record

MAGIC = bytes.fromhex("0a23d7ce")


def written(*contents):
    file = io.BytesIO()
    offsets = [write_record(file, content) for content in contents]
    return file.getvalue(), offsets


def small_file():
    return written(
        pack_record(b"payload", 1.0, 1),
        pack_record(b"abcd" + MAGIC + b"xyz" + MAGIC, 2.0, 2),
        pack_record(b"", [1.0, 3.0], 3),
    )
