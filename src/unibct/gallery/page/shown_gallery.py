"""A gallery as requests read it: one after the other, so that no model is called twice at a time.

It is opened apart from the gallery that a backfill writes to (``changes``): a search never waits
for a batch of a backfill.
"""

import random
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.data.decoding import Pixels
from unibct.data.image_set import ImageSet
from unibct.errors import UserError
from unibct.gallery.gallery import Gallery
from unibct.gallery.gallery_folder import DamagedCertificateError
from unibct.gallery.page.answers import (
    CertificateAnswer,
    CertificatesAnswer,
    ColumnAnswer,
    JobAnswer,
    SampleAnswer,
    SearchAnswer,
    StatusAnswer,
    deleted_since,
    described_certificate,
    described_hits,
    described_models,
    described_status,
    last_upgrade,
    standing_before,
)
from unibct.gallery.search import Hit, Queries, older_spaces, search_gallery
from unibct.gallery.search_request import NEW_QUERY, SearchRequest
from unibct.gallery.state import GalleryState, Standing, Step


@dataclass(frozen=True)
class Query:
    """An image to search with."""

    pixels: Pixels  # of the image
    id: str | None = None  # in the image set, if it is from there
    label: str | None = None  # of the image, if it is known


class ShownGallery:
    """Answers everything that changes nothing."""

    def __init__(self, path: Path, images: ImageSet | None = None, *, device: Any = "auto") -> None:
        """Open a gallery; the images are those of its rows, by id, if they are given."""
        if images is not None and images.vector_dim is not None:
            raise UserError(f"{images.name} has vectors; the page needs the images of the rows")
        self.path = path
        self.images = images
        self._gallery = Gallery(path, device=device)
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """What the page calls the gallery."""
        return self.path.resolve().name

    def close(self) -> None:
        """Let go of files and connections."""
        with self._lock:
            self._gallery.close()

    def status(self, job: JobAnswer | None = None) -> StatusAnswer:
        """Return what the gallery looks like now."""
        with self._lock:
            status = self._gallery.status()
            fars = self._fars(status.state)
        has_images = self.images is not None
        return described_status(self.name, status, fars, job, has_images=has_images)

    def search(self, query: Query, request: SearchRequest) -> SearchAnswer:
        """Search by the model before the last upgrade, if there is one, and by the present one."""
        with self._lock:
            state = self._gallery.folder.state
            columns: list[ColumnAnswer] = []
            if standing_before(state.steps) is not None:
                columns.append(self._before(state, query, request))
            hits = self._hits(state.standing, query, request)
            columns.append(self._column(state, hits))
        return SearchAnswer(
            columns=columns, query_id=query.id, query_label=query.label, forced=state.is_forced
        )

    def certificates(self) -> CertificatesAnswer:
        """Return why the searching model may search the rows of each older one."""
        with self._lock:
            folder = self._gallery.folder
            access = folder.state.standing.access
            models = described_models(folder.state)
            answers: list[CertificateAnswer] = []
            for kind, reason in access.items():
                paper, problem = None, ""
                try:
                    paper = folder.certificate(reason.certificate) if reason.certificate else None
                except DamagedCertificateError as error:
                    problem = str(error)
                answers.append(described_certificate(models[kind], reason, paper, problem))
        return CertificatesAnswer(certificates=answers)

    def query(self, image_id: str) -> Query:
        """Return an image of the image set, to search with."""
        return Query(self.pixels(image_id), image_id, self._label(image_id))

    def pixels(self, image_id: str) -> Pixels:
        """Return the pixels of an image of the image set. An id that is not there is no path."""
        if self.images is None:
            raise KeyError(
                "this gallery is shown without images; serve it with the images of its rows"
            )
        if image_id not in self.images.position:
            raise KeyError(f"{image_id!r} is not an image of {self.images.name}")
        return self.images.read(image_id)

    def samples(self, count: int, seed: int) -> list[SampleAnswer]:
        """Return some images of the image set."""
        ids = () if self.images is None else self.images.ids
        chosen = random.Random(seed).sample(ids, min(count, len(ids)))
        return [SampleAnswer(id=image_id, label=self._label(image_id)) for image_id in chosen]

    def _label(self, image_id: str) -> str | None:
        images = self.images
        assert images is not None
        label = int(images.labels[images.position[image_id]])
        return (images.class_names[label] or None) if label >= 0 else None

    def _fars(self, state: GalleryState) -> list[float]:
        """Return the false accept rates for which every kind of rows has a threshold."""
        known = self._gallery.folder.certificates()
        digests = {access.certificate for access in state.standing.access.values()}
        used = [paper for paper in known if paper.digest in digests]
        if not state.standing.access:
            used = [p for p in known if state.standing.searching in (p.old, p.new)][:1]
        elif "" in digests:
            used = []
        return [far for far in used[0].fars if all(far in p.fars for p in used)] if used else []

    def _before(self, state: GalleryState, query: Query, request: SearchRequest) -> ColumnAnswer:
        """Search as the model before the last upgrade did: its rows as they were."""
        upgrade = last_upgrade(state.steps)
        assert upgrade is not None
        assert upgrade.before is not None
        models = described_models(state)
        hits: list[Hit] = []
        problem = ""
        try:
            hits = self._found_before(upgrade, upgrade.before, query, request)
        except UserError as error:
            problem = str(error)
        deleted = deleted_since(state.steps, upgrade.number)
        if deleted and not problem:
            problem = f"{deleted:,} old vectors are deleted: these rows it cannot find any more"
        return ColumnAnswer(
            role="before",
            model=models[upgrade.before.searching],
            hits=described_hits(hits, models, self._with_image),
            problem=problem,
        )

    def _found_before(
        self, upgrade: Step, before: Standing, query: Query, request: SearchRequest
    ) -> list[Hit]:
        """Search rows as they were before an upgrade; what was replaced by then is left out."""
        more = replace(
            request, with_superseded=True, encoders=NEW_QUERY, alpha=None, old_scores=False
        )
        while True:
            hits = self._hits(before, query, more)
            not_replaced = self._not_replaced(hits, upgrade)
            if len(not_replaced) >= request.k or len(hits) < more.k:
                return not_replaced[: request.k]
            more = replace(more, k=2 * more.k)

    def _not_replaced(self, hits: list[Hit], upgrade: Step) -> list[Hit]:
        """Return the hits whose rows were live when a step began."""
        engine = self._gallery.folder.engine
        replaced: set[tuple[str, str]] = set()
        for kind in {hit.model for hit in hits}:
            rows = engine.read(kind, [h.id for h in hits if h.model == kind], vectors=False)
            marks = zip(rows.ids, rows.superseded.tolist(), strict=True)
            replaced |= {(kind, row_id) for row_id, step in marks if 0 < step < upgrade.number}
        return [hit for hit in hits if (hit.model, hit.id) not in replaced]

    def _column(self, state: GalleryState, hits: list[Hit]) -> ColumnAnswer:
        models = described_models(state)
        return ColumnAnswer(
            role="now",
            model=models[state.standing.searching],
            hits=described_hits(hits, models, self._with_image),
            problem="",
        )

    @property
    def _with_image(self) -> dict[str, int]:
        return {} if self.images is None else self.images.position

    def _hits(self, standing: Standing, query: Query, request: SearchRequest) -> list[Hit]:
        folder = self._gallery.folder
        vectors = self._vectors(standing.searching, query)
        older = {
            kind: self._vectors(space, query)
            for kind, space in older_spaces(folder, standing, request).items()
        }
        queries = Queries(("query",), vectors, standing.searching, older)
        return search_gallery(folder, queries, request, standing)[0]

    def _vectors(self, fingerprint: str, query: Query) -> NDArray[np.float32]:
        embedder = self._gallery.folder.model(fingerprint)
        return np.asarray(embedder.embed([query.pixels]), dtype=np.float32)
