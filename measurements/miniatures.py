"""Miniatures of MS1Mv3 and IJB-C in their real file layouts, drawn from the embedded images.

A character stands for a person, a typeface for a photograph. The miniatures let every step of a
real run be tried, file by file. What is measured on them says nothing about faces.
"""

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from unibct.data.convert import convert
from unibct.data.decoding import Pixels, fit
from unibct.data.image_set import ImageSet, encoded_set
from unibct.data.readers import open_images
from unibct.errors import UserError
from unibct.evaluation.protocols.ijb_faces import IMAGE_FOLDER, SIZE, TEMPLATE, warp
from unibct.files import atomic_folder

_CROP = 160  # width and height of a loose crop
_JPEG_QUALITY = 92


def make_ms1mv3(out: Path, *, identities: int = 240, images_each: int = 8, seed: int = 0) -> None:
    """Write ``train.rec``, ``train.idx`` and ``property``, with 112×112 JPEG images."""
    chosen = _sample(open_images("glyphs:train"), identities, images_each, seed)
    rng = np.random.default_rng([seed, 1])
    files = {image_id: _jpeg(coloured(chosen.read(image_id), rng)) for image_id in chosen.ids}

    def encoded(image_id: str) -> bytes:
        return files[image_id]

    source = encoded_set("miniature", chosen.ids, chosen.labels, chosen.class_names, encoded)
    convert(source, out, to="recordio")


def make_ijbc(out: Path, *, subjects: int = 80, seed: int = 0) -> None:
    """Write ``meta/`` and ``loose_crop/``: unaligned images, and the lists of templates and pairs.

    Each subject has a gallery template and two probe templates of four images in two or three
    media. The first half of the subjects is in G1, the second in G2. Every gallery template is
    paired with every probe.
    """
    per_template, probes_each = 4, 2
    images_each = per_template * (1 + probes_each)
    chosen = _sample(open_images("glyphs:test"), subjects, images_each, seed)
    rng = np.random.default_rng([seed, 2])
    rows: list[str] = []
    landmarks: list[str] = []
    lists: dict[str, list[str]] = {"G1": [], "G2": [], "probe": []}
    with atomic_folder(out, alone=True) as temporary:
        folder = temporary / IMAGE_FOLDER
        (temporary / "meta").mkdir()
        folder.mkdir()
        number = 0
        for subject in range(subjects):
            ids = [chosen.ids[i] for i in np.flatnonzero(chosen.labels == subject)]
            for part in range(1 + probes_each):
                template = 1 + 7 * (subject * (1 + probes_each) + part)  # real ids have gaps, too
                side = "probe" if part else "G1" if subject < subjects // 2 else "G2"
                for place in range(per_template):
                    number += 1
                    name = f"{number}.jpg"
                    pixels = coloured(chosen.read(ids[part * per_template + place]), rng)
                    crop, points = unaligned(pixels, rng)
                    (folder / name).write_bytes(_jpeg(crop))
                    # Media of different sizes: pooling with and without media means differs.
                    media = 1000 * template + (max(place - 1, 0) if part else place // 3)
                    rows.append(f"{name} {template} {media}")
                    numbers = " ".join(f"{value:.4f}" for value in points.ravel())
                    landmarks.append(f"{name} {numbers} {rng.uniform(0.6, 1):.6f}")
                    lists[side].append(f"{template},{subject + 1},{IMAGE_FOLDER}/{name}")
        pairs = [
            f"{first[0]} {second[0]} {int(first[1] == second[1])}"
            for first in _templates(lists["G1"] + lists["G2"])
            for second in _templates(lists["probe"])
        ]
        header = ["TEMPLATE_ID,SUBJECT_ID,FILENAME"]
        for file, lines in {
            "ijbc_face_tid_mid.txt": rows,
            "ijbc_name_5pts_score.txt": landmarks,
            "ijbc_template_pair_label.txt": pairs,
            "ijbc_1N_gallery_G1.csv": header + lists["G1"],
            "ijbc_1N_gallery_G2.csv": header + lists["G2"],
            "ijbc_1N_probe_mixed.csv": header + lists["probe"],
        }.items():
            text = "".join(f"{line}\n" for line in lines)
            (temporary / "meta" / file).write_text(text, encoding="ascii", newline="\n")


def coloured(glyph: Pixels, rng: np.random.Generator) -> Pixels:
    """Return a (112, 112, 3) character in one colour on a lighter one."""
    ink, paper = rng.uniform(0, 110, 3), rng.uniform(150, 255, 3)
    cover = fit(glyph, SIZE, SIZE, 1).astype(np.float64) / 255
    paper_share = cover if glyph[0, 0] > 127 else 1 - cover
    return np.rint(ink + (paper - ink) * paper_share).astype(np.uint8)


def unaligned(pixels: Pixels, rng: np.random.Generator) -> tuple[Pixels, NDArray[np.float64]]:
    """Return a loose crop with the image rotated, scaled and shifted, and its (5, 2) landmarks."""
    angle, scale = rng.uniform(-0.3, 0.3), rng.uniform(0.8, 1.2)
    rotation = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    centre = np.full(2, (SIZE - 1) / 2)
    shift = np.full(2, (_CROP - 1) / 2) + rng.uniform(-6, 6, 2) - rotation @ centre
    crop = warp(pixels, np.column_stack([rotation, shift]), _CROP)
    return crop, TEMPLATE @ rotation.T + shift


def _sample(images: ImageSet, classes: int, images_each: int, seed: int) -> ImageSet:
    """Return a random sample of classes, with a random sample of images of each."""
    sizes = np.bincount(images.labels)
    enough = np.flatnonzero(sizes >= images_each)
    if len(enough) < classes:
        raise UserError(
            f"{images.name} has {len(enough)} classes of {images_each} images, not {classes}"
        )
    rng = np.random.default_rng([seed, 0])
    rows = [
        rng.permutation(np.flatnonzero(images.labels == label))[:images_each]
        for label in np.sort(rng.permutation(enough)[:classes])
    ]
    return images.select(np.concatenate(rows))


def _jpeg(pixels: Pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=_JPEG_QUALITY)
    return file.getvalue()


def _templates(rows: list[str]) -> list[tuple[str, str]]:
    """Return the template and the subject of each template in the rows of a list, once."""
    return list(dict.fromkeys((row.split(",")[0], row.split(",")[1]) for row in rows))
