"""Reader of the meta files of IJB-B and IJB-C, in the layout that the field passes around.

root/meta/ijbc_face_tid_mid.txt          image template media
root/meta/ijbc_name_5pts_score.txt       image x1 y1 … x5 y5 score; the same rows
root/meta/ijbc_template_pair_label.txt   template template 0/1
root/meta/ijbc_1N_gallery_G1.csv, …      template,subject,…; a header, a row per image
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
_DIGITS = 18  # what surely fits an int64
_TABLE_ENTRIES = 50_000_000  # largest id for which a table of all ids is made
_TAB_TO_SPACE = bytes.maketrans(b"\t", b" ")
_PAIR_SEPARATORS = np.frombuffer(b"  \n", dtype=np.uint8)


class Subjects(NamedTuple):
    """Templates and the subject of each, one entry per template, in the file's order."""

    templates: Ints
    subjects: Ints


@dataclass(frozen=True)
class Meta:
    """The protocol of one benchmark: its images, its pairs and its searches.

    Attributes:
        images: (images) names in ``loose_crop/``, one per row; a name may occur more than once.
        templates: (images,) the template of each row.
        media: (images,) the media of each row, within its template.
        landmarks: (images, 5, 2) float32, x and y of the eyes, the nose and the mouth's corners.
        scores: (images,) float32, the detector's.
        first: (pairs,) template ids of the first column, the side that is enrolled.
        second: (pairs,) template ids of the second column.
        same: (pairs,) whether the two templates show the same subject.
        galleries: name -> its templates and subjects.
        probes: the templates that are searched with, and their subjects.
    """

    images: tuple[str, ...]
    templates: Ints
    media: Ints
    landmarks: NDArray[np.float32]
    scores: NDArray[np.float32]
    first: Ints
    second: Ints
    same: Bools
    galleries: dict[str, Subjects]
    probes: Subjects


def read_meta(root: Path, name: str = "ijbc") -> Meta:
    """The meta files of ``ijbc`` or ``ijbb`` in ``root/meta``, checked against each other."""
    if name not in GALLERIES:
        raise UserError(f"unknown benchmark {name!r}; choose {' or '.join(sorted(GALLERIES))}")
    folder = Path(root) / "meta"
    images, templates, media = _read_images(folder / f"{name}_face_tid_mid.txt")
    landmarks, scores = _read_landmarks(
        folder / f"{name}_name_5pts_score.txt", images, folder / f"{name}_face_tid_mid.txt"
    )
    known: Ints = np.unique(templates)
    subject_of: dict[int, int] = {}
    galleries = {
        part: _read_subjects(folder / f"{name}_1N_gallery_{part}.csv", known, subject_of)
        for part in GALLERIES[name]
    }
    probe_file = folder / f"{name}_1N_probe_mixed.csv"
    probes = _read_subjects(probe_file, known, subject_of)
    _require_mates(probes, galleries, probe_file)
    first, second, same = _read_pairs(folder / f"{name}_template_pair_label.txt", known)
    return Meta(images, templates, media, landmarks, scores, first, second, same, galleries, probes)


def rows_of(known: Ints, wanted: Ints) -> Ints:
    """The place of each wanted id in ``known`` (ascending, unique), or -1."""
    if not len(known) or not len(wanted):
        return np.full(len(wanted), -1, dtype=np.int64)
    if known[0] < 0 or known[-1] > _TABLE_ENTRIES:
        place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        return np.where(known[place] == wanted, place, -1)
    table = np.full(int(known[-1]) + 2, -1, dtype=np.int64)
    table[known] = np.arange(len(known))
    outside = (wanted < 0) | (wanted > known[-1])
    return table[np.where(outside, len(table) - 1, wanted)]


@contextmanager
def _opened(path: Path) -> Generator[IO[bytes]]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); "
            "the meta files of IJB-B or IJB-C belong in the folder meta of the root"
        ) from error


def _rows(path: Path, columns: int, layout: str) -> Generator[tuple[int, list[bytes]]]:
    """Line number and fields of each line that is not blank."""
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            fields = line.removeprefix(b"\xef\xbb\xbf").split()
            if len(fields) == columns:
                yield number, fields
            elif fields:
                raise _bad_line(path, number, f"has {len(fields)} fields", layout)


def _bad_line(path: Path, number: int, what: str, layout: str) -> UserError:
    return UserError(f"{path} line {number} {what}; a line is `{layout}`: copy the file again")


def _integer(field: bytes, path: Path, number: int, layout: str) -> int:
    if field.isdigit() and len(field) <= _DIGITS:
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
    lines = array("q")
    for number, (name, *numbers) in _rows(path, 12, layout):
        row = len(lines)
        if row < len(names) and _text(name) != names[row]:
            raise UserError(
                f"{path} line {number} is of {_text(name)} but row {row + 1} of {names_path.name} "
                f"is of {names[row]}; both files must list the same images in the same order"
            )
        try:
            values.extend(map(float, numbers))
        except ValueError as error:
            raise _bad_line(path, number, "has a field that is no number", layout) from error
        lines.append(number)
    if len(lines) != len(names):
        raise UserError(
            f"{path} has {len(lines)} rows but {names_path.name} has {len(names)}; "
            "both files must list the same images in the same order"
        )
    with np.errstate(over="ignore"):
        table = np.array(values, dtype=np.float64).astype(np.float32).reshape(-1, 11)
    finite = np.isfinite(table).all(axis=1)
    if not finite.all():
        number = lines[int(finite.argmin())]
        raise _bad_line(path, number, "has a landmark or score that is not finite", layout)
    return table[:, :10].reshape(-1, 5, 2).copy(), table[:, 10].copy()


def _read_subjects(path: Path, known: Ints, subject_of: dict[int, int]) -> Subjects:
    """Template and subject, columns 0 and 1; ``subject_of`` holds those of all files so far."""
    layout = "template,subject,…"
    line_of: dict[int, int] = {}
    header = True
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            # Quotes can only matter in the columns after these two.
            fields = [field.strip(b' \t\r\n"\xef\xbb\xbf') for field in line.split(b",", 2)[:2]]
            if not any(fields):
                continue
            if len(fields) < 2:
                raise _bad_line(path, number, "has fewer than two columns", layout)
            if header:
                if fields[0].isdigit():
                    raise UserError(
                        f"{path} has no header: line {number} is {_text(b','.join(fields))}; "
                        "put the names of the columns in its first line"
                    )
                header = False
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
    _require_known(templates, known, np.array(list(line_of.values())), path)
    subjects = np.array([subject_of[template] for template in line_of], dtype=np.int64)
    return Subjects(templates, subjects)


def _require_mates(probes: Subjects, galleries: dict[str, Subjects], path: Path) -> None:
    enrolled = np.concatenate([gallery.subjects for gallery in galleries.values()])
    alone = ~np.isin(probes.subjects, enrolled)
    if alone.any():
        row = int(alone.argmax())
        raise UserError(
            f"{path}: template {int(probes.templates[row])} has the subject "
            f"{int(probes.subjects[row])}, which no gallery has; the files of the galleries "
            f"({', '.join(galleries)}) and of the probes must come from the same release"
        )


def _read_pairs(path: Path, known: Ints) -> tuple[Ints, Ints, Bools]:
    parts: list[tuple[Ints, Ints, Bools]] = []
    for values, lines in _pair_chunks(path):
        wrong = values[:, 2] > 1
        if wrong.any():
            row = int(wrong.argmax())
            raise UserError(
                f"{path} line {int(lines[row])} has the label {int(values[row, 2])}; "
                "a label is 1 (same subject) or 0"
            )
        first, second = values[:, 0].copy(), values[:, 1].copy()
        for column in (first, second):
            _require_known(column, known, lines, path)
        parts.append((first, second, values[:, 2] == 1))
    if not parts:
        raise UserError(f"{path} lists no pair; copy the file again")
    first, second, same = (np.concatenate(column) for column in zip(*parts, strict=True))
    return first, second, same


def _require_known(templates: Ints, known: Ints, lines: NDArray[Any], path: Path) -> None:
    unknown = rows_of(known, templates) < 0
    if unknown.any():
        row = int(unknown.argmax())
        raise UserError(
            f"{path} line {int(lines[row])} has the template {int(templates[row])}, which has no "
            "image in the file …_face_tid_mid.txt; both must come from the same release"
        )


def _pair_chunks(path: Path) -> Generator[tuple[Ints, Ints]]:
    """(rows, 3) numbers and (rows,) their line numbers, some megabytes at a time."""
    done, rest = 0, b""
    with _opened(path) as file:
        while True:
            read = file.read(_CHUNK_BYTES)
            text = (rest + read).translate(_TAB_TO_SPACE, delete=b"\r")
            if not read:
                text += b"\n"  # of the last line; a blank one is passed over
            end = text.rfind(b"\n") + 1
            text, rest = text[:end], text[end:]
            values = _plain_triples(text)
            if values is None:
                values, lines = _triples_by_line(text, path, done)
            else:
                lines = np.arange(done + 1, done + 1 + len(values))
            done += text.count(b"\n")
            if len(values):
                yield values, lines
            if not read:
                return


def _plain_triples(text: bytes) -> Ints | None:
    """(lines, 3) numbers if each line is three numbers with single spaces, else None."""
    letters = np.frombuffer(text, dtype=np.uint8)
    separators = np.flatnonzero(letters < ord("0"))
    if not len(separators) or len(separators) % 3 or letters.max() > ord("9"):
        return None
    lengths = np.diff(separators, prepend=-1) - 1
    if lengths.min() < 1 or lengths.max() > _DIGITS:
        return None
    if not (letters[separators].reshape(-1, 3) == _PAIR_SEPARATORS).all():
        return None
    return np.fromstring(text, dtype=np.int64, sep=" ").reshape(-1, 3)


def _triples_by_line(text: bytes, path: Path, done: int) -> tuple[Ints, Ints]:
    """The same where some line is unusual: slow, but it names the line that is wrong."""
    layout = "template template 0/1"
    values, lines = array("q"), array("q")
    for number, line in enumerate(text.splitlines(), start=done + 1):
        fields = line.removeprefix(b"\xef\xbb\xbf").split()
        if not fields:
            continue
        if len(fields) != 3:
            raise _bad_line(path, number, f"has {len(fields)} fields", layout)
        values.extend(_integer(field, path, number, layout) for field in fields)
        lines.append(number)
    return np.array(values, np.int64).reshape(-1, 3), np.array(lines, np.int64)
