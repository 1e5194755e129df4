"""Reader of the meta files of IJB-B and IJB-C, in the layout in which they are distributed.

root/meta/ijbc_face_tid_mid.txt          image template media
root/meta/ijbc_name_5pts_score.txt       image x1 y1 … x5 y5 score; the same rows
root/meta/ijbc_template_pair_label.txt   template template 0/1
root/meta/ijbc_1N_gallery_G1.csv, …      template,subject,…; a header, then a row for each image
"""

from array import array
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unibct.errors import UserError

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

GALLERIES = {"ijbb": ("S1", "S2"), "ijbc": ("G1", "G2")}

_CHUNK_BYTES = 4_000_000
_MAX_DIGITS = 18  # a number with more digits might not fit into an int64
_LARGEST_TABLED_ID = 50_000_000  # with larger ids a table of all ids would need too much memory
_TAB_TO_SPACE = bytes.maketrans(b"\t", b" ")
_PAIR_SEPARATORS = np.frombuffer(b"  \n", dtype=np.uint8)


class TemplateSubjects(NamedTuple):
    """Templates and the subject of each, one entry per template, in the order of the file."""

    templates: Ints
    subjects: Ints


@dataclass(frozen=True)
class Meta:
    """What the meta files of one benchmark contain: its images, its pairs and its searches."""

    # (images,) names in ``loose_crop/``, one per row; a name may occur more than once.
    images: tuple[str, ...]
    templates: Ints  # (images,) the template id of each row
    media: Ints  # (images,) the media id of each row; it counts only within the template
    # (images, 5, 2) float32, x and y of the eyes, the nose and the mouth's corners.
    landmarks: NDArray[np.float32]
    scores: NDArray[np.float32]  # (images,) float32, the scores of the face detector
    first: Ints  # (pairs,) template ids of the first column, normally the enrolled side
    second: Ints  # (pairs,) template ids of the second column
    same: Bools  # (pairs,) whether the two templates show the same subject
    # The templates and subjects of each gallery, by its name.
    galleries: dict[str, TemplateSubjects]
    probes: TemplateSubjects  # the query templates and their subjects


def read_meta(root: Path, name: str = "ijbc") -> Meta:
    """Read the meta files in ``root/meta``, of ``ijbc`` or ``ijbb``, and check them."""
    if name not in GALLERIES:
        raise UserError(f"unknown benchmark {name!r}; choose {' or '.join(sorted(GALLERIES))}")
    folder = Path(root) / "meta"
    images, templates, media = _read_images(folder / f"{name}_face_tid_mid.txt")
    landmarks, scores = _read_landmarks(
        folder / f"{name}_name_5pts_score.txt", images, folder / f"{name}_face_tid_mid.txt"
    )
    known_ids: Ints = np.unique(templates)
    subject_of: dict[int, int] = {}
    galleries = {
        part: _read_subjects(folder / f"{name}_1N_gallery_{part}.csv", known_ids, subject_of)
        for part in GALLERIES[name]
    }
    probe_file = folder / f"{name}_1N_probe_mixed.csv"
    probes = _read_subjects(probe_file, known_ids, subject_of)
    _require_mates(probes, galleries, probe_file)
    first, second, same = _read_pairs(folder / f"{name}_template_pair_label.txt", known_ids)
    return Meta(images, templates, media, landmarks, scores, first, second, same, galleries, probes)


def rows_of(known_ids: Ints, wanted_ids: Ints) -> Ints:
    """Return the row of each wanted id among the known ids, ascending, each once; -1 if absent."""
    if not len(known_ids) or not len(wanted_ids):
        return np.full(len(wanted_ids), -1, dtype=np.int64)
    if known_ids[0] < 0 or known_ids[-1] > _LARGEST_TABLED_ID:
        row = np.minimum(np.searchsorted(known_ids, wanted_ids), len(known_ids) - 1)
        return np.where(known_ids[row] == wanted_ids, row, -1)
    row_of_id = np.full(int(known_ids[-1]) + 2, -1, dtype=np.int64)  # the last entry stays -1
    row_of_id[known_ids] = np.arange(len(known_ids))
    outside = (wanted_ids < 0) | (wanted_ids > known_ids[-1])
    return row_of_id[np.where(outside, len(row_of_id) - 1, wanted_ids)]


@contextmanager
def _opened(path: Path) -> Generator[IO[bytes]]:
    """Open a meta file; an error says where the meta files belong."""
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); "
            "the meta files of IJB-B or IJB-C belong in the folder meta of the root"
        ) from error


def _rows(path: Path, columns: int, layout: str) -> Generator[tuple[int, list[bytes]]]:
    """Yield the line number and the fields of each line that is not blank."""
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            fields = line.removeprefix(b"\xef\xbb\xbf").split()
            if len(fields) == columns:
                yield number, fields
            elif fields:
                raise _bad_line(path, number, f"has {len(fields)} fields", layout)


def _bad_line(path: Path, number: int, problem: str, layout: str) -> UserError:
    return UserError(f"{path} line {number} {problem}; a line is `{layout}`: copy the file again")


def _integer(field: bytes, path: Path, number: int, layout: str) -> int:
    if field.isdigit() and len(field) <= _MAX_DIGITS:
        return int(field)
    raise _bad_line(path, number, f"has {_text(field)!r}, not a whole number", layout)


def _text(field: bytes) -> str:
    return field.decode("utf-8", errors="replace")


def _read_images(path: Path) -> tuple[tuple[str, ...], Ints, Ints]:
    layout = "image template media"
    names: list[str] = []
    templates, media = array("q"), array("q")
    for number, (name, template, medium) in _rows(path, 3, layout):
        names.append(_text(name))
        templates.append(_integer(template, path, number, layout))
        media.append(_integer(medium, path, number, layout))
    if not names:
        raise UserError(f"{path} is empty; it should list the images of each template")
    return tuple(names), np.array(templates, np.int64), np.array(media, np.int64)


def _read_landmarks(
    path: Path, names: tuple[str, ...], names_path: Path
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    layout = "image x1 y1 … x5 y5 score"
    values = array("d")
    line_numbers = array("q")
    for number, (name, *numbers) in _rows(path, 12, layout):
        row = len(line_numbers)
        if row < len(names) and _text(name) != names[row]:
            raise UserError(
                f"{path} line {number} has the image {_text(name)} but row {row + 1} of "
                f"{names_path.name} has {names[row]}; "
                "both files must list the same images in the same order"
            )
        try:
            values.extend(map(float, numbers))
        except ValueError as error:
            raise _bad_line(path, number, "has a field that is no number", layout) from error
        line_numbers.append(number)
    if len(line_numbers) != len(names):
        raise UserError(
            f"{path} has {len(line_numbers)} rows but {names_path.name} has {len(names)}; "
            "both files must list the same images in the same order"
        )
    with np.errstate(over="ignore"):
        table = np.array(values, dtype=np.float64).astype(np.float32).reshape(-1, 11)
    finite = np.isfinite(table).all(axis=1)
    if not finite.all():
        number = line_numbers[int(finite.argmin())]
        raise _bad_line(path, number, "has a landmark or score that is not finite", layout)
    return table[:, :10].reshape(-1, 5, 2).copy(), table[:, 10].copy()


def _read_subjects(path: Path, known_ids: Ints, subject_of: dict[int, int]) -> TemplateSubjects:
    """Read a file whose first two columns are template and subject.

    Only the templates in ``known_ids`` have an image. To ``subject_of``, from the files that were
    read before, this file's subjects are added.
    """
    layout = "template,subject,…"
    line_of: dict[int, int] = {}
    expects_header = True
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            # Only the columns after these two can have commas between quotes.
            fields = [field.strip(b' \t\r\n"\xef\xbb\xbf') for field in line.split(b",", 2)[:2]]
            if not any(fields):
                continue
            if len(fields) < 2:
                raise _bad_line(path, number, "has fewer than two columns", layout)
            if expects_header:
                if fields[0].isdigit():
                    raise UserError(
                        f"{path} has no header: line {number} is {_text(b','.join(fields))}; "
                        "put the names of the columns in its first line"
                    )
                expects_header = False
                continue
            template, subject = (_integer(field, path, number, layout) for field in fields)
            if subject_of.setdefault(template, subject) != subject:
                raise UserError(
                    f"{path} line {number}: template {template} has the subject {subject}, but "
                    f"{subject_of[template]} in an earlier row or file; a template has one subject"
                )
            line_of.setdefault(template, number)
    if not line_of:
        raise UserError(f"{path} lists no template; copy the file again")
    templates = np.array(list(line_of), dtype=np.int64)
    _require_known(templates, known_ids, np.array(list(line_of.values())), path)
    subjects = np.array([subject_of[template] for template in line_of], dtype=np.int64)
    return TemplateSubjects(templates, subjects)


def _require_mates(
    probes: TemplateSubjects, galleries: dict[str, TemplateSubjects], path: Path
) -> None:
    enrolled = np.concatenate([gallery.subjects for gallery in galleries.values()])
    without_mate = ~np.isin(probes.subjects, enrolled)
    if without_mate.any():
        row = int(without_mate.argmax())
        raise UserError(
            f"{path}: template {int(probes.templates[row])} has the subject "
            f"{int(probes.subjects[row])}, which no gallery has; the files of the galleries "
            f"({', '.join(galleries)}) and of the probes must come from the same release"
        )


def _read_pairs(path: Path, known_ids: Ints) -> tuple[Ints, Ints, Bools]:
    """Return the first templates, the second templates, and whether they show one subject."""
    chunks: list[tuple[Ints, Ints, Bools]] = []
    for triples, line_numbers in _pair_chunks(path):
        invalid = triples[:, 2] > 1
        if invalid.any():
            row = int(invalid.argmax())
            raise UserError(
                f"{path} line {int(line_numbers[row])} has the label {int(triples[row, 2])}; "
                "a label is 1 (same subject) or 0"
            )
        first, second = triples[:, 0].copy(), triples[:, 1].copy()
        for column in (first, second):
            _require_known(column, known_ids, line_numbers, path)
        chunks.append((first, second, triples[:, 2] == 1))
    if not chunks:
        raise UserError(f"{path} lists no pair; copy the file again")
    first, second, same = (np.concatenate(column) for column in zip(*chunks, strict=True))
    return first, second, same


def _require_known(
    templates: Ints, known_ids: Ints, line_numbers: NDArray[Any], path: Path
) -> None:
    unknown = rows_of(known_ids, templates) < 0
    if unknown.any():
        row = int(unknown.argmax())
        raise UserError(
            f"{path} line {int(line_numbers[row])} has the template {int(templates[row])}, which "
            "has no image in the file …_face_tid_mid.txt; both must come from the same release"
        )


def _pair_chunks(path: Path) -> Generator[tuple[Ints, Ints]]:
    """Yield (rows, 3) numbers and (rows,) their line numbers, a few megabytes at a time."""
    lines_done, rest = 0, b""
    with _opened(path) as file:
        while True:
            data = file.read(_CHUNK_BYTES)
            text = (rest + data).translate(_TAB_TO_SPACE, delete=b"\r")
            if not data:
                text += b"\n"  # ends the last line; if that is blank, it is skipped
            end = text.rfind(b"\n") + 1
            text, rest = text[:end], text[end:]
            triples = _plain_triples(text)
            if triples is None:
                triples, line_numbers = _triples_by_line(text, path, lines_done)
            else:
                line_numbers = np.arange(lines_done + 1, lines_done + 1 + len(triples))
            lines_done += text.count(b"\n")
            if len(triples):
                yield triples, line_numbers
            if not data:
                return


def _plain_triples(text: bytes) -> Ints | None:
    """Return (lines, 3) numbers; None unless every line is three numbers and single spaces."""
    letters = np.frombuffer(text, dtype=np.uint8)
    separators = np.flatnonzero(letters < ord("0"))
    if not len(separators) or len(separators) % 3 or letters.max() > ord("9"):
        return None
    lengths = np.diff(separators, prepend=-1) - 1
    if lengths.min() < 1 or lengths.max() > _MAX_DIGITS:
        return None
    if not (letters[separators].reshape(-1, 3) == _PAIR_SEPARATORS).all():
        return None
    return np.fromstring(text, dtype=np.int64, sep=" ").reshape(-1, 3)


def _triples_by_line(text: bytes, path: Path, lines_done: int) -> tuple[Ints, Ints]:
    """Return (lines, 3) numbers and their line numbers, for whole lines that are unusual.

    This is slower than ``_plain_triples`` but finds the line that is wrong.
    """
    layout = "template template 0/1"
    values, line_numbers = array("q"), array("q")
    for number, line in enumerate(text.splitlines(), start=lines_done + 1):
        fields = line.removeprefix(b"\xef\xbb\xbf").split()
        if not fields:
            continue
        if len(fields) != 3:
            raise _bad_line(path, number, f"has {len(fields)} fields", layout)
        values.extend(_integer(field, path, number, layout) for field in fields)
        line_numbers.append(number)
    return np.array(values, np.int64).reshape(-1, 3), np.array(line_numbers, np.int64)
