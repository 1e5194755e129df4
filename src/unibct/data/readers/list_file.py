"""Reader of list files, which have a line ``path label`` for each image."""

from os.path import normpath
from pathlib import Path

from unibct.data.image_set import FileSource, ImageSet, checked_id, classes_of, encoded_set
from unibct.errors import UserError

SUFFIXES = (".txt", ".lst", ".list")


def recognises(name: str) -> bool:
    """Return whether ``name`` is a file whose suffix is that of a list."""
    path = Path(name)
    return path.is_file() and path.suffix in SUFFIXES


def read(name: str) -> ImageSet:
    """Return the images of a list file, in its order. Paths are relative to the file's folder.

    The last word of a line is the label, which may be any word. With one tab in a line, the label
    is all that follows it. A path may contain spaces. Empty lines, and lines that begin with # and
    a space, are ignored.
    """
    path = Path(name)
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a UTF-8 text file of lines `path label`") from error
    ids: list[str] = []
    label_words: list[str] = []
    seen: set[str] = set()
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text == "#" or text.startswith("# "):
            continue
        # With one tab in the line, path and label may both contain spaces.
        words = text.split("\t") if text.count("\t") == 1 else text.rsplit(None, 1)
        image_id, *label = (word.strip() for word in words)
        if not label or not image_id:
            raise UserError(
                f"{path}, line {number}: {text[:60]!r} is not `path label`; a list of ids, such as "
                "`unibct split` writes, is given beside the data, as the list of images"
            )
        if "\t" in image_id:
            raise UserError(
                f"{path}, line {number}: {text[:60]!r} has more columns than `path label`; leave "
                "the others out"
            )
        file = normpath(image_id)  # ./a.png is a.png
        if file in seen:
            raise UserError(f"{path}, line {number}: {image_id!r} is listed twice")
        seen.add(file)
        ids.append(checked_id(image_id))
        label_words.append(label[0])
    if not ids:
        raise UserError(f"{path} lists no image")
    class_names, labels = classes_of(label_words)
    return encoded_set(name, tuple(ids), labels, class_names, FileSource(path.parent))
