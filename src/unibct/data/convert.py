"""Writing a data set in another layout; the encoded images stay as they are, to the byte."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from unibct.data.images import UnreadableImageError, decode, encode_png, image_suffix
from unibct.data.recordio import pack_record, write_record
from unibct.data.records import CLASSES_FILE, PROPERTY_FILE
from unibct.data.sets import ImageSet
from unibct.errors import UserError
from unibct.files import atomic_folder
from unibct.progress import Advance, Progress, Silent

_EXACT = 1 << 24  # above it float32 skips whole numbers
_NAMED = 10  # unreadable images that an error names


def convert(
    images: ImageSet,
    out: Path,
    *,
    to: str,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> int:
    """Write every image of a set to a new folder in another layout.

    Args:
        images: the set.
        out: a new folder; it is there whole or not at all.
        to: a name from ``LAYOUTS``.
        skip_bad: leave images out that are no PNG, JPEG or WebP, instead of refusing.
        progress: told of each image.

    Returns:
        How many images were written.
    """
    if to not in LAYOUTS:
        raise UserError(f"unknown layout {to!r}; choose one of {', '.join(LAYOUTS)}")
    bad: list[str] = []
    with atomic_folder(out) as temporary:
        with (progress or Silent()).task(f"writing {to}", len(images)) as advance:
            written = LAYOUTS[to](images, temporary, _encoded(images, bad, advance))
        if bad and not (skip_bad and written):
            more = f"; and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
            raise UserError(
                f"{images.name} has {len(bad)} unreadable images: {'; '.join(bad[:_NAMED])}{more}. "
                "Mend or remove, or leave them out with --skip-bad-images"
            )
    if bad and progress is not None:
        progress.note(f"left out {len(bad)} unreadable images: {'; '.join(bad)}")
    return written


def _encoded(
    images: ImageSet, bad: list[str], advance: Advance
) -> Iterator[tuple[int, bytes, str]]:
    """Row, bytes and suffix of each image, class by class; those that are none go to ``bad``."""
    for row in map(int, np.argsort(images.labels, kind="stable")):
        image_id = images.ids[row]
        try:
            source = images.encoded
            data = encode_png(images.read(image_id)) if source is None else source(image_id)
            yield row, data, image_suffix(data)
        except UnreadableImageError as error:
            bad.append(f"{image_id} ({error})")
        advance(1)


def write_folder(images: ImageSet, out: Path, encoded: Iterator[tuple[int, bytes, str]]) -> int:
    """``<class>/<image>``; the image is named after its id."""
    for name in images.class_names:
        if not name or name.startswith(".") or "/" in name or "\\" in name:
            raise UserError(f"class {name!r} of {images.name} cannot be a folder's name")
    written = 0
    names: set[str] = set()
    for row, data, suffix in encoded:
        class_name = images.class_names[int(images.labels[row])]
        tail = images.ids[row].removeprefix(f"{class_name}/").replace("/", "_")
        if not tail.lower().endswith((suffix, suffix.replace("jpg", "jpeg"))):
            tail += suffix
        name = f"{class_name}/{tail}"
        if name in names:
            raise UserError(f"{images.name}: two images would be called {name}; rename one")
        names.add(name)
        (out / class_name).mkdir(exist_ok=True)
        (out / name).write_bytes(data)
        written += 1
    return written


def write_recordio(images: ImageSet, out: Path, encoded: Iterator[tuple[int, bytes, str]]) -> int:
    """``train.rec``, ``train.idx`` and ``property`` in InsightFace's layout, and the class names.

    Keys 1…N are the images, class by class; then a record for each class with its range of keys,
    and last, with key 0, the range of those.
    """
    lines: list[str] = []
    sizes: list[int] = []  # images of each class that has any
    kept: list[int] = []
    shape = (0, 0)
    with (out / "train.rec").open("wb") as file:

        def write(key: int, content: bytes) -> None:
            lines.append(f"{key}\t{write_record(file, content)}\n")

        key = 0
        for row, data, _ in encoded:
            label = int(images.labels[row])
            if not kept or kept[-1] != label:
                kept.append(label)
                sizes.append(0)
            if key == 0:
                shape = decode(data).shape[:2]
            key += 1
            sizes[-1] += 1
            write(key, pack_record(data, float(len(kept) - 1), key))
        images_written = key
        if max(images_written + 1 + len(sizes), len(sizes)) >= _EXACT:
            raise UserError(
                f"{images.name} has {images_written:,} images: above {_EXACT:,} the layout's float "
                "keys are no longer exact; split the set into several files"
            )
        first = 1
        for size in sizes:
            key += 1
            write(key, pack_record(b"", [float(first), float(first + size)], key))
            first += size
        write(0, pack_record(b"", [float(images_written + 1), float(key + 1)], 0))
    (out / "train.idx").write_text("".join(lines), encoding="ascii", newline="\n")
    height, width = shape
    (out / PROPERTY_FILE).write_text(f"{len(sizes)},{height},{width}", encoding="ascii")
    names = "".join(f"{images.class_names[label]}\n" for label in kept)
    (out / CLASSES_FILE).write_text(names, encoding="utf-8", newline="\n")
    return images_written


LAYOUTS: dict[str, Callable[[ImageSet, Path, Iterator[tuple[int, bytes, str]]], int]] = {
    "recordio": write_recordio,
    "folder": write_folder,
}
