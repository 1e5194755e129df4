"""Make the part `glyphs:final`: other characters than those of `glyphs`, in other typefaces.

    python scripts/make_glyphs_final.py [--fonts DIR]

Run it after `make_glyphs.py`, whose file it reads and whose typefaces it draws again.
Running time: about a minute on one core. The first run also downloads 153 packages (215 MB).
Needs: what `make_glyphs.py` needs, and npm.

Reads  scripts/glyphs_fonts.txt, src/unibct/data/readers/glyphs.npz
       scripts/glyphs_final_fonts.txt                      pinned npm packages, a family each
Writes src/unibct/data/readers/glyphs_final.npz            the same arrays as glyphs.npz
       src/unibct/data/readers/glyphs_final_typefaces.csv  the same columns

The package index of `make_glyphs.py` has too few other families, hence npm. No family is in both
lists, and none begins with the same word as one of the other list (Noto, Fira): it could be of the
same design. Left out as well: variants of a listed family, and text made of blocks.

Two runs with the same versions write the same bytes. These are the steps:

1.  Draw, as `make_glyphs.py` does, in the typefaces of both lists: every character that it drew,
    and every letter and digit of SCRIPTS that it did not and that at least MIN_IMAGES new typefaces
    have.
2.  Merge characters that look the same in at least 20 % of the typefaces that have both. Leave out
    each class with a character that `make_glyphs.py` drew.
3.  Of the images in new typefaces, drop one that looks the same as one of another class in the same
    typeface (the characters that `make_glyphs.py` drew included), or as one of the same class in
    another typeface, or that is byte-identical to any other image, those of `glyphs.npz` included.
4.  Keep the classes with at least MIN_IMAGES images, at most MAX_OF_SCRIPT classes of a script, and
    at most 24 images of each class.
"""

import argparse
import collections
import hashlib
import json
import subprocess
import tarfile
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, cast

import numpy as np
from make_glyphs import (
    FONTS,
    GLYPHS,
    MIN_TYPEFACES,
    REPO,
    SEED,
    WHITE_LEVEL,
    Classes,
    FontFile,
    Typeface,
    common_characters,
    draw_typeface,
    gather_classes,
    has_open_licence,
    measure_capitals,
    merge_look_alikes,
    print_versions,
    read_font,
    read_notice,
    read_typefaces,
    write_set,
)

REQUIREMENTS = REPO / "scripts" / "glyphs_final_fonts.txt"
FINAL_GLYPHS = GLYPHS.with_name("glyphs_final.npz")
# The files of a family: those with characters of SCRIPTS or of `make_glyphs.py`, H in the first.
GROUPS = (
    *("latin", "latin-ext", "vietnamese", "cyrillic", "cyrillic-ext", "greek", "math", "symbols"),
    *("arabic", "devanagari", "greek-ext", "hebrew", "khmer", "thai"),
)
SCRIPTS = ("ARABIC", "DEVANAGARI", "GREEK", "HEBREW", "KHMER", "LATIN", "THAI")
MIN_IMAGES = 16
MAX_OF_SCRIPT = 56  # none of them outweighs the others
FINAL_PART = 3  # after training, validation and test


def find_packages(folder: Path) -> list[Path]:
    """Return the pinned packages, sorted by name; download them if one is missing."""
    pins = sorted(REQUIREMENTS.read_text().split())
    names = [pin.removeprefix("@").replace("/", "-").replace("@", "-") + ".tgz" for pin in pins]
    missing = [pin for pin, name in zip(pins, names, strict=True) if not (folder / name).is_file()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        npm = ["npm", "pack", "--silent", "--pack-destination", str(folder)]
        subprocess.run([*npm, *missing], check=True)
    return [folder / name for name in names]


def read_package(path: Path) -> Typeface:
    """Read the Regular upright face of a package, which has a file for each group of characters."""
    with tarfile.open(path) as archive:

        def content(name: str) -> bytes:
            return cast(IO[bytes], archive.extractfile(f"package/{name}")).read()

        metadata = json.loads(content("metadata.json"))
        package = json.loads(content("package.json"))
        licence = metadata["license"]
        if not has_open_licence(licence["type"], content("LICENSE").decode()):
            raise ValueError(f"{path.name} is not openly licensed")
        family = metadata["id"]
        groups = [group for group in GROUPS if group in metadata["subsets"]]
        fonts = [content(f"files/{family}-{group}-400-normal.woff") for group in groups]
    files: tuple[FontFile, ...] = tuple(read_font(font) for font in fonts)
    cap_top, cap_bottom = measure_capitals(files[0])
    return Typeface(
        name=family,
        family=metadata["family"],
        package=package["name"],
        version=package["version"],
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        font_file=f"files/{family}-*-400-normal.woff",
        licence=licence["type"],
        copyright=" ".join((read_notice(fonts[0]) or licence["attribution"]).split()),
        files=files,
        cap_top=cap_top,
        cap_bottom=cap_bottom,
    )


def script_of(code_point: int) -> str:
    """Return the first word of the character's name, such as THAI."""
    return unicodedata.name(chr(code_point), "").partition(" ")[0]


def known_ink() -> Iterator[bytes]:
    """Yield the ink of each image of `glyphs.npz`."""
    with np.load(GLYPHS, allow_pickle=False) as arrays:
        pixels = arrays["pixels"]
    ink = np.empty((len(pixels), 2 * pixels.shape[1]), np.uint8)
    ink[:, 0::2], ink[:, 1::2] = WHITE_LEVEL - (pixels >> 4), WHITE_LEVEL - (pixels & 0x0F)
    return (row.tobytes() for row in ink)


def choose_classes(names: Iterable[int]) -> list[int]:
    """Choose at most MAX_OF_SCRIPT classes of each script; return them, ascending."""
    of_script: dict[str, list[int]] = collections.defaultdict(list)
    for name in sorted(names):
        of_script[script_of(name)].append(name)
    chosen: list[int] = []
    for script, members in of_script.items():
        order = np.random.default_rng([SEED, SCRIPTS.index(script)]).permutation(len(members))
        chosen += [members[index] for index in order[:MAX_OF_SCRIPT]]
        print(
            f"{script.capitalize()}: {min(len(members), MAX_OF_SCRIPT)} of {len(members)} classes"
        )
    return sorted(chosen)


def main() -> None:
    """Make the two files."""
    parser = argparse.ArgumentParser(description="Make the part glyphs:final.")
    parser.add_argument("--fonts", type=Path, default=FONTS, metavar="DIR")
    folder: Path = parser.parse_args().fonts
    print_versions()
    old_typefaces = read_typefaces(folder)
    typefaces = sorted(map(read_package, find_packages(folder)), key=lambda face: face.name)
    shared = {t.name.split("-")[0] for t in typefaces} & {
        t.name.split("-")[0] for t in old_typefaces
    }
    if shared:
        raise SystemExit(f"families of {GLYPHS.name} as well: {', '.join(sorted(shared))}")

    old_characters = set(common_characters(old_typefaces, MIN_TYPEFACES))
    candidates = {
        code_point
        for code_point in common_characters(typefaces, MIN_IMAGES)
        if script_of(code_point) in SCRIPTS and unicodedata.category(chr(code_point))[0] in "LN"
    } - old_characters
    code_points = sorted(old_characters | candidates)
    drawn = [draw_typeface(typeface, code_points) for typeface in typefaces]
    print(f"{len(candidates)} other characters, {sum(len(d.ink) for d in drawn)} drawn images")

    drawn_old = [draw_typeface(typeface, code_points) for typeface in old_typefaces]
    lowest = merge_look_alikes([*drawn, *drawn_old], code_points)
    taken = {lowest[code_point] for code_point in old_characters}
    left_out = sum(lowest[code_point] in taken for code_point in candidates)
    print(f"{left_out} of them look like characters of {GLYPHS.name}")
    gathered: Classes = {
        name: images
        for name, images in gather_classes(drawn, lowest, taken, known_ink()).items()
        if name not in taken and len(images[0]) >= MIN_IMAGES
    }
    classes = {name: gathered[name] for name in choose_classes(gathered)}
    write_set(FINAL_GLYPHS, typefaces, classes, np.full(len(classes), FINAL_PART, np.int8))


if __name__ == "__main__":
    main()
