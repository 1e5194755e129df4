"""Reader of WebDataset shards: tar files in which ``key.jpg`` and ``key.cls`` are one sample.

``tar_samples`` finds the samples in a tar file. ``tar_index`` keeps the result in the user's cache
(``~/.cache/unibct/tar-index`` on Linux), so that the next start does not search the files again.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unibct.data.decoding import UnreadableImageError
from unibct.data.encoded_images import (
    CLASSES_FILE,
    checked_id,
    classes_of,
    encoded_set,
    file_stamp,
    names_of_numbers,
)
from unibct.data.image_set import ImageSet
from unibct.data.passed_over import warn_of_passed_over
from unibct.data.readers.tar_index import indexed_samples
from unibct.errors import UserError

SUFFIX = ".tar"
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True)
class TarSource:
    """The encoded images in tar files.

    A tar file is opened for each image, because there may be more shards than a process may have
    open files.

    Attributes:
        paths: the shards.
        places: for each id the shard's index, the offset in the shard, and the size.
    """

    paths: tuple[Path, ...]
    places: dict[str, tuple[int, int, int]]

    def __call__(self, image_id: str) -> bytes:
        """Return the bytes of an image."""
        shard, offset, size = self.places[image_id]
        try:
            with self.paths[shard].open("rb") as file:
                file.seek(offset)
                data = file.read(size)
        except OSError as error:
            raise UnreadableImageError(f"{self.paths[shard]}: {error.strerror}") from error
        if len(data) != size:
            raise UnreadableImageError(f"{self.paths[shard]} is shorter than when it was opened")
        return data

    def stamps(self, image_ids: Sequence[str]) -> list[str]:
        """Return the stamp of each shard."""
        return [file_stamp(path) for path in self.paths]


def recognises(name: str) -> bool:
    """Return whether ``name`` is a tar file, a pattern of tar files, or a folder with tar files."""
    return name.endswith(SUFFIX) or any(p.is_file() for p in Path(name).glob(f"*{SUFFIX}"))


def read(name: str) -> ImageSet:
    """Return all images of one or more tar files, shard by shard. An id is ``shard/key``.

    A sample's label is in ``key.cls`` (a number or a word), or in ``key.json`` under ``label``,
    ``cls`` or ``class``. ``classes.txt`` beside the files, if it is there, names the numbers.
    ``shards-{000..012}.tar`` stands for several files. A key ends at the first dot of a name, as in
    WebDataset. A sample without an image is passed over, with a warning.
    """
    paths = shard_paths(name)
    places: dict[str, tuple[int, int, int]] = {}
    label_words: list[str] = []
    without_image: list[str] = []
    for number, path in enumerate(paths):
        for sample in indexed_samples(path):
            image_id = checked_id(f"{path.stem}/{sample.key}")
            if sample.image is None:
                without_image.append(image_id)
                continue
            if sample.label is None:
                raise UserError(
                    f"{path}: sample {sample.key!r} has an image but no label; add "
                    f"{sample.key}.cls, or a {sample.key}.json whose label is a whole number or "
                    "a word"
                )
            if image_id in places:
                raise UserError(f"{name}: two shards have the sample {image_id!r}; rename a shard")
            places[image_id] = (number, *sample.image)
            label_words.append(sample.label)
    if not places:
        raise UserError(
            f"{name} holds no image: a sample is key.jpg and key.cls, and a key has no dot"
        )
    reason = "a sample needs an image such as key.jpg, and a key ends at the first dot of a name"
    warn_of_passed_over(name, without_image, reason)
    class_names, labels = classes_of(label_words)
    classes_file = paths[0].parent / CLASSES_FILE
    if classes_file.is_file() and all(name.isdecimal() for name in class_names):
        class_names = names_of_numbers(classes_file, [int(name) for name in class_names])
    return encoded_set(name, tuple(places), labels, class_names, TarSource(tuple(paths), places))


def shard_paths(name: str) -> list[Path]:
    """Return the tar files that ``name`` stands for, sorted."""
    path = Path(name)
    if path.is_dir():
        return sorted(file for file in path.glob(f"*{SUFFIX}") if file.is_file())
    number_range = _RANGE.search(name)
    if number_range is None:
        if not path.is_file():
            raise UserError(f"{name} is not there")
        return [path]
    first, last = number_range.groups()
    prefix, suffix = name[: number_range.start()], name[number_range.end() :]
    paths = [
        Path(f"{prefix}{number:0{len(first)}}{suffix}")
        for number in range(int(first), int(last) + 1)
    ]
    missing = [p for p in paths if not p.is_file()]
    if missing or not paths:
        problem = f"{missing[0]} is not there" if missing else "it counts down"
        raise UserError(f"{name} names {len(paths)} files, but {problem}")
    return paths
