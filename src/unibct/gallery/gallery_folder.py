"""The models of a gallery: kept in its folder, so that queries can be made as long as it lives."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from unibct import progress
from unibct.distributed.device import pick_device
from unibct.embedders import EMBEDDERS, Opener, parse_reference
from unibct.embedders.python_callable import PythonEmbedder
from unibct.embeddings.stored import StoredEmbeddings
from unibct.errors import UserError
from unibct.evaluation.certificate import Certificate
from unibct.files import sweep, sync
from unibct.gallery.engines import Engine, Place, open_engine
from unibct.gallery.state import (
    STATE_FILE,
    GalleryState,
    RowKind,
    Standing,
    read_state,
    write_state,
)
from unibct.models.embedder import Embedder, ImageEmbedder
from unibct.models.model import Model
from unibct.models.model_folder import MODEL_DESCRIPTION, load_model, save_model
from unibct.models.old_space import OldSpaceModel, old_space_dim, to_old_space

MODELS_FOLDER = "models"
IN_FOLDER, BY_REFERENCE, ONLY_STORED, BY_MAP = "folder", "reference", "stored", "map"


def describe_model(reference: str, opener: Opener) -> tuple[RowKind, Embedder]:
    """Open a model by a reference, and return what the state of a gallery says about it."""
    embedder = opener.open(reference)
    if isinstance(embedder, OldSpaceModel):
        embedder = embedder.model
    source, kept_reference = IN_FOLDER, ""
    if isinstance(embedder, StoredEmbeddings):
        source = ONLY_STORED
    elif not isinstance(embedder, Model):
        source, kept_reference = BY_REFERENCE, _absolute(reference)
    fingerprint = embedder.fingerprint
    name = str(reference)
    row_kind = RowKind(fingerprint, name, embedder.dim, source, kept_reference, fingerprint)
    return row_kind, embedder


def keep_model(folder: Path, embedder: Embedder) -> None:
    """Copy a model folder into a gallery's folder; other models are opened where they are.

    Of a ``python:`` embedder, what tells it from others is kept.
    """
    if isinstance(embedder, PythonEmbedder) and embedder.probe is not None:
        embedder.probe.keep(folder, embedder.fingerprint)
    place = folder / MODELS_FOLDER / embedder.fingerprint
    if isinstance(embedder, Model) and not (place / MODEL_DESCRIPTION).is_file():
        save_model(embedder, place)
        sync(place.parent)


def query_view(
    embedder: Any, vectors: NDArray[np.float32], row_dim: int, name: str
) -> NDArray[np.float32]:
    """Return a model's vectors as queries for rows of a dimension.

    If a model was trained with another dimension than its old model, its projection is used.
    """
    if vectors.shape[1] == row_dim:
        return vectors
    if isinstance(embedder, Model) and old_space_dim(embedder) == row_dim:
        return cast("NDArray[np.float32]", to_old_space(embedder, vectors))
    raise UserError(
        f"{name} makes vectors of dimension {vectors.shape[1]} and has no projection into "
        f"dimension {row_dim}, which the rows have"
    )


def open_model(folder: Path, row_kind: RowKind, opener: Opener) -> ImageEmbedder:
    """Open a model of the gallery, and check that it is still the same."""
    if row_kind.source == ONLY_STORED:
        raise UserError(
            f"only embeddings of {row_kind.name} are known to this gallery, not the model: "
            "give embeddings instead of images"
        )
    if row_kind.source == BY_MAP:
        raise UserError(f"{row_kind.name} is a map: it makes rows from rows, not from images")
    if row_kind.source == IN_FOLDER:
        embedder: Any = load_model(
            folder / MODELS_FOLDER / row_kind.fingerprint, device=pick_device(str(opener.device))
        )
    else:
        embedder = opener.open(row_kind.reference)
    if embedder.fingerprint != row_kind.fingerprint:
        raise UserError(
            f"{row_kind.name} has changed: its fingerprint is {embedder.fingerprint}, and this "
            f"gallery knows it as {row_kind.fingerprint}" + _hint(row_kind)
        )
    return embedder


def _hint(row_kind: RowKind) -> str:
    """Say what to do about a callable that only seems to have changed."""
    if not row_kind.reference.startswith("python:"):
        return ""
    return f"; if it is the same, let it say so: fingerprint = {row_kind.fingerprint!r}"


def _absolute(reference: str) -> str:
    """Return a reference whose path does not depend on the current folder."""
    parsed = parse_reference(reference, EMBEDDERS)
    if not parsed.path.exists():
        return reference
    start = reference.index(parsed.place)
    end = start + len(parsed.place)
    return f"{reference[:start]}{parsed.path.resolve()}{reference[end:]}"


# A gallery's folder: its state, its engine, its models, and the lock of the one who writes.

LOCK_FILE = "lock"
CERTIFICATES_FOLDER = "certificates"


class GalleryBusyError(UserError):
    """Another process is writing to the gallery."""


class DamagedCertificateError(UserError):
    """A certificate that is kept in the gallery is not what it was, or not there."""


class GalleryFolder:
    """An open gallery: what every command works with."""

    def __init__(self, path: Path, *, device: Any = "auto") -> None:
        self.path = path  # of the folder
        self._device = device
        self._state: GalleryState | None = None
        self._name = ""  # of the gallery, once it is known
        self._stamp: tuple[int, int] | None = None
        self._engine: Engine | None = None
        self._models: dict[str, ImageEmbedder] = {}
        self._certificates: dict[str, Certificate] = {}
        # what is wrong with certificates that are kept in the gallery, one line each, as
        # `certificates` has found it
        self.damaged_certificates: list[str] = []
        self._live: dict[str, bool] = {}

    @property
    def state(self) -> GalleryState:
        """The state, read again if another process has replaced it."""
        try:
            status = (self.path / STATE_FILE).stat()
            stamp = (status.st_mtime_ns, status.st_ino)
        except OSError:
            stamp = None
        if self._state is None or stamp != self._stamp:
            if stamp is None and self._name:
                raise UserError(self._changed("it was deleted or moved"))
            state = read_state(self.path)
            if self._name not in ("", state.name):
                raise UserError(
                    self._changed(
                        "another one is in its place; open it anew (a server: start it again)"
                    )
                )
            self._state, self._stamp, self._name = state, stamp, state.name
            self._live = {}
        return self._state

    def _changed(self, what: str) -> str:
        return f"{self.path} is no longer the gallery that was opened: {what}"

    def save(self, state: GalleryState) -> GalleryState:
        """Replace the state."""
        write_state(self.path, state)
        self._state = None
        return self.state

    @property
    def engine(self) -> Engine:
        """The engine that keeps the rows."""
        if self._engine is None:
            state = self.state
            place = Place(self.path, state.name, state.address)
            self._engine = open_engine(state.engine, place)
        return self._engine

    def has_live(self, kind: str) -> bool:
        """Return whether a kind has a row to search.

        A server takes as long for this as for a search. The answer holds until the state changes,
        as every step that writes rows does when it begins and when it ends. While one is under
        way, rows may come at any time, so that only a yes holds. A no that is late does no harm: a
        kind without rows gives no hits.
        """
        is_open = self.state.unfinished is not None
        if not self._live.get(kind) and (kind not in self._live or is_open):
            self._live[kind] = self.engine.has_live(kind)
        return self._live[kind]

    @property
    def opener(self) -> Opener:
        """How models are opened."""
        return Opener(self._device, probes=self.path)

    def model(self, fingerprint: str) -> ImageEmbedder:
        """Return a model of the gallery, loaded once."""
        if fingerprint not in self._models:
            row_kind = self.state.kinds[fingerprint]
            self._models[fingerprint] = open_model(self.path, row_kind, self.opener)
        return self._models[fingerprint]

    def certificate(self, digest: str) -> Certificate:
        """Return a certificate that is kept in the gallery."""
        if digest not in self._certificates:
            path = self.path / CERTIFICATES_FOLDER / f"{digest}.json"
            try:
                certificate = Certificate.read(path)
            except UserError as error:
                raise DamagedCertificateError(str(error)) from error
            if certificate.digest != digest:
                raise DamagedCertificateError(f"{path} is another certificate than its name says")
            self._certificates[digest] = certificate
        return self._certificates[digest]

    def keep_certificate(self, certificate: Certificate) -> None:
        """Keep a certificate in the gallery, also in place of one that was damaged."""
        self._certificates.pop(certificate.digest, None)  # the file may have changed since
        try:
            self.certificate(certificate.digest)
        except DamagedCertificateError:
            certificate.write(self.path / CERTIFICATES_FOLDER / f"{certificate.digest}.json")

    def certificates(self) -> list[Certificate]:
        """Return the certificates that are kept in the gallery; damaged ones are passed over."""
        whole: list[Certificate] = []
        known, self.damaged_certificates = self.damaged_certificates, []
        for path in sorted((self.path / CERTIFICATES_FOLDER).glob("*.json")):
            try:
                whole.append(self.certificate(path.stem))
            except DamagedCertificateError as error:
                self.damaged_certificates.append(str(error))
                if str(error) not in known:
                    progress.note(f"a certificate is passed over: {error}")
        return whole

    def doubtful(self, standing: Standing, given: Sequence[Certificate] = ()) -> tuple[str, ...]:
        """Return the kinds of rows of whose certificates the test classes may have been seen.

        The given certificates are those that the gallery does not hold yet.
        """
        held = {paper.digest: paper for paper in (*self.certificates(), *given)}
        return tuple(
            kind
            for kind, reason in standing.access.items()
            if reason.certificate in held and held[reason.certificate].basis != "unseen"
        )

    def add_kind(self, row_kind: RowKind, embedder: Embedder | None = None) -> None:
        """Make a model or map known to the gallery; one that is open is not opened again."""
        if embedder is not None and row_kind.source != ONLY_STORED:
            self._models[row_kind.fingerprint] = cast(ImageEmbedder, embedder)
        state = self.state
        if row_kind.fingerprint not in state.kinds:
            self.engine.add_kind(row_kind.fingerprint, row_kind.dim)
            self.save(replace(state, kinds=state.kinds | {row_kind.fingerprint: row_kind}))

    @contextmanager
    def writing(self) -> Generator[None]:
        """Keep other writers out; readers go on."""
        read_state(self.path)
        lock = FileLock(self.path / LOCK_FILE)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise GalleryBusyError(
                f"another process is writing to {self.path}; try again when it is done"
            ) from error
        try:
            sweep(self.path)
            self._state = None
            yield
        finally:
            lock.release()

    def close(self) -> None:
        """Let go of the engine."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
