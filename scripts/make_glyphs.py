"""Make the embedded image set `glyphs`: characters (classes) drawn in typefaces (images).

    python scripts/make_glyphs.py [--fonts DIR]

Running time: about 40 seconds on one core. The first run also downloads 197 wheels (85 MB).
Needs: Pillow and fontTools (the dependency group `glyphs`), numpy, pip.
Made with Pillow 13.0.0, FreeType 2.14.3 and fontTools 4.68.0; other versions may give other
pixels.

Reads  scripts/glyphs_fonts.txt                      pinned wheels, one type family each
Writes src/unibct/data/readers/glyphs.npz            images, labels, typefaces, names and parts
       src/unibct/data/readers/glyphs_typefaces.csv  origin, licence, images of each typeface

The part `glyphs:final` has its own script, `make_glyphs_final.py`, and its own files. Two runs with
the same versions write the same bytes. These are the steps:

1.  Draw every character that at least 20 typefaces have, in the Regular upright face of each
    family, 32x32, 16 grey levels, with the same cap height and baseline for all.
2.  Merge characters that look the same in at least 20 % of the typefaces that have both.
3.  Drop an image that looks the same as one of another class in the same typeface, or as one of
    the same class in another typeface, or that is byte-identical to any other image.
4.  Keep the classes with at least 20 images, and at most 24 images of each.
5.  Assign the classes to training, validation and test (60, 10 and 30 %).
"""

import argparse
import collections
import csv
import hashlib
import io
import json
import subprocess
import sys
import unicodedata
import zipfile
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fontTools  # pyright: ignore[reportMissingTypeStubs]
import numpy as np
import PIL
from fontTools.pens.boundsPen import BoundsPen  # pyright: ignore[reportMissingTypeStubs]
from fontTools.ttLib import TTFont  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, features

REPO = Path(__file__).resolve().parent.parent
REQUIREMENTS = REPO / "scripts" / "glyphs_fonts.txt"
GLYPHS = REPO / "src" / "unibct" / "data" / "readers" / "glyphs.npz"
FONTS = REPO / "build" / "fonts"

SIDE = 32  # pixels
CAP_HEIGHT = 15  # pixels, of the letter H; leaves room for two stacked accents
BASELINE = 24  # number of pixel rows above the baseline
OVERSAMPLING = 8  # drawn larger, then averaged: hinting moves an edge by 1/8 pixel at most
WHITE_LEVEL = 15  # 16 grey levels, so that two pixels fit in a byte
MIN_TYPEFACES, MAX_TYPEFACES = 20, 24
LINKED_SHARE = 0.2
# Two images look the same if their Euclidean distance is at most 8 grey levels: half of the range
# of a single pixel. It absorbs outlines moved by a rounding; the smallest mark that tells two
# characters apart, a dot, covers more than one pixel (distance 15 and above).
SAME_DISTANCE = 8
SEED = 666
PART_SHARES = (0.6, 0.1)  # training, validation; the rest is test
LICENCE_TITLES = {
    "OFL-1.1": "sil open font license version 1.1",
    "Apache-2.0": "apache license version 2.0",
}


@dataclass(frozen=True)
class FontFile:
    """A font, or one of several files that a font was cut into."""

    content: bytes
    axes: dict[str, float]  # of a variable font
    characters: dict[int, str]  # code point -> glyph name


@dataclass(frozen=True)
class Typeface:
    """The Regular upright face of one family, and where it comes from."""

    name: str
    family: str
    package: str
    version: str
    sha256: str
    font_file: str
    licence: str
    copyright: str
    files: tuple[FontFile, ...]  # a character is drawn from the first that has it
    cap_top: float  # of the letter H, in em; so is cap_bottom
    cap_bottom: float

    @property
    def characters(self) -> set[int]:
        """The code points that the typeface has."""
        return {code_point for file in self.files for code_point in file.characters}


@dataclass(frozen=True)
class Drawn:
    """The characters of one typeface: ink levels (n, SIDE * SIDE), 0 = paper, 15 = black."""

    code_points: NDArray[np.int64]
    ink: NDArray[np.uint8]


Classes = dict[int, tuple[NDArray[np.int64], NDArray[np.uint8]]]


def find_wheels(folder: Path) -> list[Path]:
    """Return the pinned wheels, sorted by package; download them if one is missing."""
    pins = sorted(line.split("==") for line in REQUIREMENTS.read_text().split())
    patterns = [f"{package.replace('-', '_')}-{version}-*.whl" for package, version in pins]
    if not all(any(folder.glob(pattern)) for pattern in patterns):
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "-r", str(REQUIREMENTS), "-d", str(folder)], check=True)
    return [next(folder.glob(pattern)) for pattern in patterns]


def has_open_licence(licence: str, text: str) -> bool:
    """Return whether the licence is an open one and its text has the title of that licence."""
    words = " ".join(text.lower().replace(",", " ").split())
    return licence in LICENCE_TITLES and LICENCE_TITLES[licence] in words


def read_font(content: bytes) -> FontFile:
    """Read which characters a font has; of a variable font, where its axes give Regular."""
    table: Any = TTFont(io.BytesIO(content), lazy=True)
    axes: dict[str, float] = {}
    variable_axes: list[Any] = table["fvar"].axes if "fvar" in table else []
    for axis in variable_axes:
        regular_weight = min(max(400, axis.minValue), axis.maxValue)
        axes[axis.axisTag] = regular_weight if axis.axisTag == "wght" else axis.defaultValue
    return FontFile(content, axes, table.getBestCmap())


def measure_capitals(file: FontFile) -> tuple[float, float]:
    """Return the top and the bottom of the letter H, in em."""
    table: Any = TTFont(io.BytesIO(file.content), lazy=True)
    glyphs = table.getGlyphSet(location=file.axes)
    pen: Any = BoundsPen(glyphs)
    glyphs[file.characters[ord("H")]].draw(pen)
    _, bottom, _, top = pen.bounds
    em = table["head"].unitsPerEm
    return top / em, max(bottom, 0) / em  # a swash below the baseline is not part of the height


def read_notice(content: bytes) -> str | None:
    """Return the copyright notice that a font carries."""
    table: Any = TTFont(io.BytesIO(content), lazy=True)
    return table["name"].getDebugName(0)


def read_typeface(wheel: Path) -> Typeface | None:
    """Read the Regular upright face of a wheel; return None if it is not openly licensed."""
    package, version = wheel.name.split("-")[:2]
    with zipfile.ZipFile(wheel) as archive:
        metadata = json.loads(archive.read(f"{package}/metadata.json"))
        if not has_open_licence(metadata["license"], archive.read(f"{package}/LICENSE").decode()):
            return None
        upright = [file for file in metadata["files"] if file["style"] == "normal"]
        regular = [file for file in upright if file["variable"] or file["weight"] == 400]
        if len(regular) != 1:
            raise ValueError(f"{wheel.name}: {len(regular)} Regular upright faces, expected one")
        font_file = regular[0]["path"]
        font = archive.read(f"{package}/{font_file}")

    file = read_font(font)
    cap_top, cap_bottom = measure_capitals(file)
    notice = read_notice(font) or metadata["copyright"]
    return Typeface(
        name=package.removeprefix("fontpkg_").replace("_", "-"),
        family=metadata["family"],
        package=package.replace("_", "-"),
        version=version,
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        font_file=font_file,
        licence=metadata["license"],
        copyright=" ".join(notice.split()),
        files=(file,),
        cap_top=cap_top,
        cap_bottom=cap_bottom,
    )


def read_typefaces(folder: Path) -> list[Typeface]:
    """Return the typefaces of the pinned wheels that are openly licensed, sorted by name."""
    typefaces: list[Typeface] = []
    for wheel in find_wheels(folder):
        typeface = read_typeface(wheel)
        if typeface is None:
            print(f"left out, not openly licensed: {wheel.name}")
        else:
            typefaces.append(typeface)
    return sorted(typefaces, key=lambda typeface: typeface.name)


def is_drawable(code_point: int) -> bool:
    """Return False for control, private-use and unassigned (C), space (Z) and combining (M)."""
    return unicodedata.category(chr(code_point))[0] not in "CZM"


def draw_character(
    character: str, font: ImageFont.FreeTypeFont, baseline: float
) -> NDArray[np.uint8] | None:
    """Draw a character, centred.

    Returns:
        (SIDE * SIDE,) ink levels; None if there is no ink or if it exceeds the frame.
    """
    side = SIDE * OVERSAMPLING
    margin = side // 2
    canvas = Image.new("L", (2 * side, 2 * side))
    position = (margin, margin + round(baseline * OVERSAMPLING))
    ImageDraw.Draw(canvas).text(position, character, fill=255, font=font, anchor="ls")
    box = canvas.getbbox()
    if box is None:
        return None
    left, top, right, bottom = box
    cut_by_canvas = left == 0 or right == canvas.width
    if cut_by_canvas or right - left > side or top < margin or bottom > margin + side:
        return None
    left = (left + right - side) // 2
    frame = canvas.crop((left, margin, left + side, margin + side)).reduce(OVERSAMPLING)
    ink = (np.asarray(frame, np.uint16) * WHITE_LEVEL + 127) // 255
    return ink.astype(np.uint8).ravel() if ink.any() else None


def draw_typeface(typeface: Typeface, code_points: Iterable[int]) -> Drawn:
    """Draw the characters that the typeface has and that fit into the frame."""
    em = CAP_HEIGHT / (typeface.cap_top - typeface.cap_bottom)  # in pixels
    baseline = BASELINE + em * typeface.cap_bottom
    drawn: dict[int, NDArray[np.uint8]] = {}
    for file in typeface.files:
        font = ImageFont.truetype(
            io.BytesIO(file.content), em * OVERSAMPLING, layout_engine=ImageFont.Layout.BASIC
        )
        if file.axes:
            font.set_variation_by_axes(list(file.axes.values()))
        missing = draw_character("\uffff", font, baseline)  # not a character: draws .notdef
        for code_point in code_points:
            if code_point in drawn or file.characters.get(code_point, ".notdef") == ".notdef":
                continue
            ink = draw_character(chr(code_point), font, baseline)
            if ink is not None and (missing is None or not np.array_equal(ink, missing)):
                drawn[code_point] = ink
    ascending = sorted(drawn)
    stacked = np.array([drawn[code_point] for code_point in ascending], np.uint8)
    return Drawn(np.array(ascending, np.int64), stacked.reshape(-1, SIDE * SIDE))


def common_characters(typefaces: Iterable[Typeface], least: int) -> list[int]:
    """Return the code points that at least so many typefaces have, ascending."""
    owners = collections.Counter(
        code_point for typeface in typefaces for code_point in typeface.characters
    )
    return sorted(
        code_point
        for code_point, count in owners.items()
        if count >= least and is_drawable(code_point)
    )


def looks_same(ink: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return (n, n): whether each pair of the images (n, SIDE * SIDE) looks the same."""
    levels = ink.astype(np.float32)  # squared distances stay below 2**24: exact
    products = levels @ levels.T
    norms = products.diagonal()
    return norms[:, None] + norms[None, :] - 2 * products <= SAME_DISTANCE**2


def first_of_each_look(ink: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the rows that do not look the same as an earlier row of the result."""
    same = looks_same(ink)
    distinct: list[int] = []
    for row in range(len(ink)):
        if not same[row, distinct].any():
            distinct.append(row)
    return np.array(distinct, np.int64)


def merge_look_alikes(drawn: Sequence[Drawn], code_points: Sequence[int]) -> dict[int, int]:
    """Map each code point to the lowest one of its class (union-find over the linked pairs)."""
    column = {code_point: index for index, code_point in enumerate(code_points)}
    present = np.zeros((len(drawn), len(code_points)), np.float32)
    same = np.zeros((len(code_points), len(code_points)), np.int64)
    for row, typeface in enumerate(drawn):
        columns = np.array([column[int(code_point)] for code_point in typeface.code_points])
        present[row, columns] = 1
        same[np.ix_(columns, columns)] += looks_same(typeface.ink)
    both = present.T @ present

    parent = list(range(len(code_points)))

    def root(index: int) -> int:
        while parent[index] != index:
            index = parent[index]
        return index

    for first, second in np.argwhere(np.triu((same > 0) & (same >= LINKED_SHARE * both), 1)):
        low, high = sorted((root(int(first)), root(int(second))))
        parent[high] = low
    return {code_point: code_points[root(index)] for index, code_point in enumerate(code_points)}


def gather_classes(
    drawn: Sequence[Drawn],
    lowest: dict[int, int],
    first: Set[int] = frozenset(),
    known: Iterable[bytes] = (),
) -> Classes:
    """Return the typefaces (n,) and the ink (n, SIDE * SIDE) of each class, without look-alikes.

    Args:
        drawn: the characters of each typeface.
        lowest: the class of each character.
        first: classes whose images stay if one of another class looks the same.
        known: ink of other images; an image that is identical to one of them is left out.
    """

    def rank(name: int) -> tuple[bool, int]:
        return name not in first, name

    members: dict[int, list[tuple[int, NDArray[np.uint8]]]] = collections.defaultdict(list)
    for index, typeface in enumerate(drawn):
        of_class: dict[int, NDArray[np.uint8]] = {}
        for code_point, ink in zip(typeface.code_points.tolist(), typeface.ink, strict=True):
            of_class.setdefault(lowest[code_point], ink)  # code points ascend: the lowest stays
        names = sorted(of_class, key=rank)
        ink = np.array([of_class[name] for name in names])
        for row in first_of_each_look(ink):  # drops e.g. the small letters of a capitals-only face
            members[names[row]].append((index, ink[row]))

    classes: Classes = {}
    seen = set(known)
    for name in sorted(members, key=rank):
        fresh = [(index, ink) for index, ink in members[name] if ink.tobytes() not in seen]
        seen.update(ink.tobytes() for _, ink in fresh)
        if not fresh:
            continue
        ink = np.array([ink for _, ink in fresh])
        rows = first_of_each_look(ink)
        classes[name] = (np.array([index for index, _ in fresh], np.int64)[rows], ink[rows])
    return classes


def choose_typefaces(name: int, count: int) -> NDArray[np.int64]:
    """Choose at most MAX_TYPEFACES of the images of a class; return their rows, ascending."""
    if count <= MAX_TYPEFACES:
        return np.arange(count)
    return np.sort(np.random.default_rng([SEED, name]).permutation(count)[:MAX_TYPEFACES])


def assign_parts(classes: int) -> NDArray[np.int8]:
    """Return the part of each class: 0 training, 1 validation, 2 test."""
    ends = np.round(np.cumsum(PART_SHARES) * classes).astype(np.int64)
    parts = np.empty(classes, np.int8)
    parts[np.random.default_rng(SEED).permutation(classes)] = np.searchsorted(
        ends, np.arange(classes), side="right"
    )
    return parts


def write_npz(path: Path, arrays: dict[str, NDArray[np.generic]]) -> None:
    """Write what `numpy.savez_compressed` writes, but with a fixed time stamp."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, array, allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3  # the same on all systems
            archive.writestr(entry, content.getvalue(), zipfile.ZIP_DEFLATED, 9)


def write_typefaces(path: Path, typefaces: Sequence[Typeface], counts: Sequence[int]) -> None:
    """Write the table of the typefaces."""
    columns = ("name", "family", "package", "version", "sha256", "font_file", "licence")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*columns, "copyright", "images"])
        for typeface, count in zip(typefaces, counts, strict=True):
            values = [getattr(typeface, column) for column in columns]
            writer.writerow([*values, typeface.copyright, count])


def write_set(
    path: Path, typefaces: Sequence[Typeface], classes: Classes, parts: NDArray[np.int8]
) -> None:
    """Write at most MAX_TYPEFACES images of each class, and the table of the typefaces."""
    chosen = {name: choose_typefaces(name, len(indices)) for name, (indices, _) in classes.items()}
    indices = np.concatenate([classes[name][0][rows] for name, rows in chosen.items()])
    ink = np.concatenate([classes[name][1][rows] for name, rows in chosen.items()])
    labels = np.repeat(np.arange(len(chosen)), [len(rows) for rows in chosen.values()])
    counts = np.bincount(indices, minlength=len(typefaces)).tolist()
    unused = [t.package for t, count in zip(typefaces, counts, strict=True) if count == 0]
    if unused:
        raise SystemExit(f"no image of {', '.join(unused)}: remove from the list of fonts")

    grey = WHITE_LEVEL - ink
    write_npz(
        path,
        {
            "pixels": grey[:, 0::2] << 4 | grey[:, 1::2],
            "labels": labels.astype(np.uint16),
            "typefaces": indices.astype(np.uint8),
            "code_points": np.array(list(chosen), np.uint32),
            "typeface_names": np.array([typeface.name for typeface in typefaces]),
            "parts": parts,
        },
    )
    write_typefaces(path.with_name(f"{path.stem}_typefaces.csv"), typefaces, counts)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    print(f"{len(chosen)} classes, {len(ink)} images, {len(typefaces)} typefaces")
    print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB, sha256 {digest}")


def print_versions() -> None:
    """Print the versions that the pixels depend on."""
    freetype = features.version("freetype2")
    print(f"Pillow {PIL.__version__}, FreeType {freetype}, fontTools {fontTools.version}")


def main() -> None:
    """Make the two files."""
    parser = argparse.ArgumentParser(description="Make the embedded image set glyphs.")
    parser.add_argument("--fonts", type=Path, default=FONTS, metavar="DIR")
    folder: Path = parser.parse_args().fonts
    print_versions()
    typefaces = read_typefaces(folder)
    code_points = common_characters(typefaces, MIN_TYPEFACES)
    drawn = [draw_typeface(typeface, code_points) for typeface in typefaces]
    print(f"{len(code_points)} characters, {sum(len(d.ink) for d in drawn)} drawn images")

    lowest = merge_look_alikes(drawn, code_points)
    print(f"{len(code_points) - len(set(lowest.values()))} characters merged into others")
    classes = {
        name: images
        for name, images in gather_classes(drawn, lowest).items()
        if len(images[0]) >= MIN_TYPEFACES
    }
    write_set(GLYPHS, typefaces, classes, assign_parts(len(classes)))


if __name__ == "__main__":
    main()
