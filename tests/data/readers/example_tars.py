"""Small tar files for tests."""

import io
import tarfile

from tests.data.example_images import png


def write_tar(path, members):
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def png_members(count):
    return [(f"{i}.{kind}", png(i) if kind == "png" else b"1") for i in range(count)
            for kind in ("png", "cls")]  # fmt: skip
