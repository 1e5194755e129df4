"""The end of the demo: the upgrade is carried out on a small gallery, and back again."""

import shutil
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unibct.data.image_set import ImageSet
from unibct.errors import UserError
from unibct.gallery.certificate import Certificate
from unibct.gallery.gallery import Answer, Gallery
from unibct.gallery.naming import Names, count_names
from unibct.gallery.queries import Queries, make_queries
from unibct.gallery.search_request import SearchRequest
from unibct.gallery.sources import open_source
from unibct.progress import Progress, Silent

FAR = 1e-3
ROWS_PER_CLASS = 4
SHARES = (0.25, 0.5, 0.75, 1.0)  # of the rows that are the new model's own
STAGES = 2 + len(SHARES) + 2


@dataclass(frozen=True)
class Stage:
    """How the gallery searches at a moment of the upgrade.

    Attributes:
        title: what has just been done.
        searching: ``old`` or ``new``, the model of the queries.
        old_rows: rows that the old model made.
        new_rows: rows that the new model made.
        first: the names of the first rows, however low their scores.
        named: the names of rows above the threshold for ``FAR``.
    """

    title: str
    searching: str
    old_rows: int
    new_rows: int
    first: Names
    named: Names

    @property
    def share(self) -> float:
        """The share of rows that the new model made."""
        return self.new_rows / max(1, self.old_rows + self.new_rows)

    @property
    def top_1(self) -> float:
        """The share of queries whose first row is of their class."""
        return self.first.right / max(1, self.first.queries)

    @property
    def right_names(self) -> float:
        """The share of queries that get their name at ``FAR``."""
        return self.named.right / max(1, self.named.queries)


@dataclass(frozen=True)
class GalleryStory:
    """What became of the demo's gallery.

    Attributes:
        folder: the gallery.
        classes: how many identities it knows.
        far: the false accept rate of the names; None if the test was too small for a threshold.
        stages: in their order.
        restored: after the rollback every query found the same first row with the same score as
            at first; None if it was not reached.
        forced: the verdict, if it was not *compatible* and the upgrade was forced.
        stopped: why the story ends early; empty if it does not.
    """

    folder: Path
    classes: int
    far: float | None
    stages: tuple[Stage, ...]
    restored: bool | None = None
    forced: str = ""
    stopped: str = ""

    @property
    def curve(self) -> tuple[Stage, ...]:
        """The stages from the upgrade to the full backfill."""
        return self.stages[1 : 2 + len(SHARES)]


class _Narrator:
    """Searches the gallery after each step with the same queries."""

    def __init__(self, gallery: Gallery, certificate: Certificate, queries: ImageSet) -> None:
        self.far = min((far for far in certificate.fars if far >= FAR), default=None)
        self.stages: list[Stage] = []
        self.answers: list[list[Answer]] = []
        self._gallery = gallery
        self._certificate = certificate
        self._source = open_source(queries)
        self._queries: dict[str, Queries] = {}

    def look(self, title: str) -> None:
        """Add a stage."""
        gallery, papers = self._gallery, self._certificate
        status = gallery.status()
        model = status.state.standing.searching
        if model not in self._queries:
            request = SearchRequest()
            self._queries[model] = make_queries(gallery.folder, self._source, request)
        first = gallery.search(self._queries[model], k=1)
        named = gallery.search(self._queries[model], k=1, far=self.far)
        self.answers.append(first)
        self.stages.append(
            Stage(
                title,
                "old" if model == papers.old else "new",
                status.live.get(papers.old, 0),
                status.live.get(papers.new, 0),
                count_names(first),
                count_names(named),
            )
        )


def carry_upgrade_out(
    folder: Path,
    models: tuple[str, str],
    certificate: Certificate,
    images: ImageSet,
    *,
    device: Any = "cpu",
    progress: Progress | None = None,
) -> GalleryStory:
    """Make a gallery by the old model, upgrade it, backfill it, roll it back, and finish.

    Args:
        folder: of the gallery; what an earlier run has left there is removed.
        models: the old and the new model.
        certificate: of this upgrade. If it does not say *compatible*, the upgrade is forced.
        images: of classes that no model has seen; some of each class become rows, the others are
            queries.
        device: where models compute.
        progress: reports the stages.
    """
    shutil.rmtree(folder, ignore_errors=True)
    rows, queries = split_images(images)
    paper = certificate.write(folder.parent / "certificate.json")
    gallery = Gallery.create(folder, models[0], certificates=[paper], device=device)
    narrator = _Narrator(gallery, certificate, queries)
    stopped = ""
    with (progress or Silent()).task("the gallery", STAGES, "stages", weight=0.0) as advance:
        try:
            for title in _steps(gallery, rows, models[1], paper, not certificate.is_compatible):
                narrator.look(title)
                advance(1)
        except UserError as error:
            stopped = str(error)
        finally:
            gallery.close()
    return GalleryStory(
        folder,
        len(images.class_names),
        narrator.far,
        tuple(narrator.stages),
        _restored(narrator),
        "" if certificate.is_compatible else certificate.verdict,
        stopped,
    )


def _steps(
    gallery: Gallery, rows: ImageSet, new: str, certificate: Path, force: bool
) -> Generator[str]:
    """Take one step after another, and yield what was done."""
    gallery.add(rows)
    yield "before"
    gallery.upgrade(new, [certificate], force=force)
    yield "upgrade"
    for share in SHARES:
        gallery.backfill(rows, share=share)
        yield f"backfill {share:.0%}"
    gallery.rollback()
    yield "rollback"
    gallery.upgrade(new, [certificate], force=force)
    gallery.backfill(rows)
    gallery.finish()
    yield "upgrade again, finish"


def _restored(narrator: _Narrator) -> bool | None:
    """Return whether the rollback brought every hit and score back."""
    if len(narrator.stages) < STAGES - 1:
        return None
    before, after = (narrator.answers[place] for place in (0, STAGES - 2))
    return [answer.hits for answer in before] == [answer.hits for answer in after]


def split_images(images: ImageSet, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Return some images of each class as rows, and the others as queries."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(images))
    rows = np.sort(
        np.concatenate(
            [
                order[images.labels[order] == label][:ROWS_PER_CLASS]
                for label in range(len(images.class_names))
            ]
        )
    )
    return images.select(rows), images.select(np.setdiff1d(np.arange(len(images)), rows))
