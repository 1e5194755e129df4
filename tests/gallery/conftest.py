"""Fixtures of the gallery: an engine of each kind, and rows to put into it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from unibct.arrays import normalized
from unibct.gallery.engines.engine import Engine
from unibct.gallery.engines.table import Place, open_engine
from unibct.gallery.rows import GalleryRows, Metadata, sealed_rows


@pytest.fixture(params=["embedded"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An empty engine."""
    opened = open_engine(request.param, Place(tmp_path / "gallery", "gallery_test"))
    opened.create()
    yield opened
    opened.destroy()


def random_vectors(rows: int, dim: int = 8, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return normalized(generator.standard_normal((rows, dim)).astype(np.float32))


def some_rows(
    kind: str,
    ids: list[str],
    *,
    step: int = 1,
    dim: int = 8,
    seed: int = 0,
    metadata: list[Metadata] | None = None,
) -> GalleryRows:
    """Rows with random vectors; the label is the first letter of the id."""
    return sealed_rows(
        kind,
        ids,
        [row_id[0] for row_id in ids],
        metadata or [{} for _ in ids],
        random_vectors(len(ids), dim, seed),
        step,
    )
