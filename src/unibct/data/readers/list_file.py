"""Reader of list files: a line ``path label`` for each image."""

from pathlib import Path

from unibct.data.encoded_images import FileSource, checked_id, classes_of, encoded_set
from unibct.data.image_set import ImageSet
from unibct.errors import UserError

SUFFIXES = (".txt", ".lst", ".list")


def is_list(path: Path) -> bool:
    """Whether a path is a list file, by its name."""
    return path.is_file() and path.suffix in SUFFIXES


def read_list(name: str) -> ImageSet:
    """The images that a list names, in its order; paths are relative to the list's folder.

    The label is the last word of a line and may be any word; a path may have spaces. Empty lines
    and lines that begin with # are passed over.
    """
    path = Path(name)
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a UTF-8 text file of lines `path label`") from error
    ids: list[str] = []
    words: list[str] = []
    seen: set[str] = set()
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        image_id, *label = text.rsplit(None, 1)
        if not label:
            raise UserError(f"{path}, line {number}: {text[:60]!r} is not `path label`")
        if "\t" in image_id:
            raise UserError(
                f"{path}, line {number}: {text[:60]!r} has more columns than `path label`; leave "
                "the others out"
            )
        if image_id in seen:
            raise UserError(f"{path}, line {number}: {image_id!r} is listed twice")
        seen.add(image_id)
        ids.append(checked_id(image_id))
        words.append(label[0])
    if not ids:
        raise UserError(f"{path} lists no image")
    class_names, labels = classes_of(words)
    return encoded_set(name, tuple(ids), labels, class_names, FileSource(path.parent))
