"""RecordIO: reading and decoding against decoding from memory, and opening a set of MS1Mv3's size.

    python measurements/recordio_rate.py                  the ratio of the rates; goal: 0.9 or more
    python measurements/recordio_rate.py --open 5179510   time and memory to open that many records

The two rates are measured in turns on the same images, with one thread. The result is the median
over the turns.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from miniatures import make_ms1mv3

from unibct.data.decoding import decode
from unibct.data.readers import open_images
from unibct.data.readers.recordio import pack_record, write_record
from unibct.data.scenarios import split

CLASSES = 93_431
TURNS = 9


def main() -> None:
    """Measure the rates, or the opening."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--open", type=int, metavar="N", help="open N records instead")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.open:
            measure_opening(Path(folder), arguments.open)
        else:
            measure_rate(Path(folder))


def measure_rate(folder: Path) -> None:
    """Print the images per second from the file and from bytes in memory."""
    make_ms1mv3(folder / "ms1mv3", identities=240, images_each=8)
    images = open_images(folder / "ms1mv3")
    encoded = images.encoded
    assert encoded is not None
    in_memory = [encoded(image_id) for image_id in images.ids]
    order: list[int] = np.random.default_rng(0).permutation(len(images)).tolist()
    seconds: dict[str, list[float]] = {"file": [], "memory": []}
    for _ in range(TURNS):
        begin = time.perf_counter()
        for row in order:
            images.read(images.ids[row])
        seconds["file"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        for row in order:
            decode(in_memory[row])
        seconds["memory"].append(time.perf_counter() - begin)
    rates = {name: len(images) / float(np.median(turns)) for name, turns in seconds.items()}
    print(f"{len(images):,} JPEG images of 112×112, in random order, one thread")
    for name, rate in rates.items():
        print(f"  from {name:7} {rate:8,.0f} images/s")
    print(f"  ratio        {rates['file'] / rates['memory']:8.3f}")


def measure_opening(folder: Path, records: int) -> None:
    """Write that many small records in InsightFace's layout; time opening and splitting them."""
    labels = np.sort(np.random.default_rng(0).integers(0, CLASSES, records))
    lines: list[str] = []
    with (folder / "train.rec").open("wb") as file:
        for key, label in enumerate(labels.tolist(), start=1):
            offset = write_record(file, pack_record(b"12345678", float(label), key))
            lines.append(f"{key}\t{offset}\n")
    (folder / "train.idx").write_text("".join(lines))
    del lines
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    images = open_images(folder)
    opened = time.perf_counter() - begin
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
    begin = time.perf_counter()
    parts = split(images.labels, "extended-data")
    print(
        f"{len(images):,} records of {len(images.class_names):,} classes: opened in {opened:.1f} s "
        f"with {memory:.1f} GB more; split in {time.perf_counter() - begin:.1f} s "
        f"({len(parts.old):,} old images)"
    )


if __name__ == "__main__":
    main()
