"""`python:` a callable from images to vectors; and what it has in common with an ONNX file.

Of both only input and output are known.
"""

import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from unibct.arrays import normalized, to_numpy
from unibct.data.augmentation import mirrored
from unibct.data.decoding import DEFAULT_FIT, Pixels
from unibct.data.training_classes import UNKNOWN_CLASSES, TrainingClasses
from unibct.embedders import Opener, Reference, parse_size
from unibct.embeddings.store import write_array
from unibct.errors import UserError
from unibct.files import mapped_array, user_cache_folder
from unibct.models.input import InputSpec
from unibct.models.model import embed_in_batches
from unibct.registry import find_attribute


class BlackBox(ABC):
    """A function from pixels to vectors: a subclass sets the attributes and has ``outputs``."""

    name: str  # what the user called it
    dim: int  # of its vectors
    fingerprint: str  # tells it from all embedders with other vectors
    input: InputSpec  # the size and channels that it takes
    training_classes: TrainingClasses = UNKNOWN_CLASSES

    @abstractmethod
    def outputs(self, pixels: Pixels) -> NDArray[np.float32]:
        """Return the vectors of one batch as they come.

        The shapes are (batch, height, width, channels) -> (batch, dim).
        """

    def embed(self, images: Any, *, batch_size: int = 256) -> Any:
        """Return L2-normalised embeddings of images of any size, see ``Model.embed``."""
        return embed_in_batches(self, images, batch_size)

    def embed_pixels(self, pixels: Pixels) -> NDArray[np.float32]:
        """Return L2-normalised embeddings of one batch that already has the input's size."""
        return normalized(self.outputs(pixels)).astype(np.float32, copy=False)

    def raw_embeddings(self, pixels: Pixels, *, flip_test: bool = True) -> NDArray[np.float32]:
        """Return embeddings that are not normalised, of both views with ``flip_test``."""
        vectors = self.outputs(pixels)
        return vectors + self.outputs(mirrored(pixels)) if flip_test else vectors

    def to(self, device: Any) -> Self:
        """Stay where it is: a black box chooses its device when it is opened."""
        return self


# The vectors of fixed images, by which a callable without a fingerprint of its own is known
# again.
#
# Another device or library changes them a little (TF32: by 1e-3 of their length), so that a
# digest of them would be another one. They are compared by cosine with those that were kept
# before, and get the fingerprint of those. How much two networks' vectors of one image may differ
# depends on how much the vectors of different images do: after a short training, all lie in a
# narrow cone.

_FOLDER = "probes"
_SAME_SHARE = 5e-4  # of the mean distance (1 − cosine) of different images; TF32: at most 5e-5


@dataclass(frozen=True)
class Probe:
    """What a callable makes of the fixed images."""

    subject: str  # its name and the images it takes; only probes of one subject are compared
    vectors: NDArray[np.float32]  # (images, dim), L2-normalised
    fingerprint: str  # a digest of these vectors, rounded

    def known_fingerprint(self, known: Path | None) -> str:
        """Return the fingerprint under which an embedder with these vectors was seen before.

        One that nobody has seen is remembered in the user's cache folder, by its own fingerprint.

        Args:
            known: a folder to look in first, with what ``keep`` has kept.
        """
        cache = user_cache_folder()
        with suppress(OSError):
            name = None if known is None else self._nearest(self._distances(known))
            if name is not None or cache is None:
                return name or self.fingerprint
            self._folder(cache).mkdir(parents=True, exist_ok=True)
            with FileLock(self._folder(cache) / "lock"):
                distances = self._distances(cache)
                name = self._nearest(distances)
                if name is None:
                    taken = self.fingerprint in distances  # rounding hides much in a narrow cone
                    name = self._exact_digest() if taken else self.fingerprint
                    self.keep(cache, name)
                return name
        return self.fingerprint

    def keep(self, folder: Path, fingerprint: str) -> None:
        """Keep the vectors in a folder as those of a fingerprint; the first ones stay."""
        if fingerprint not in self._distances(folder):
            path = self._folder(folder) / f"{fingerprint}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_array(path, self.vectors)

    def _distances(self, folder: Path) -> dict[str, float]:
        """Return how far the vectors of each fingerprint that a folder knows are from these."""
        distances: dict[str, float] = {}
        for path in self._folder(folder).glob("*.npy"):
            with suppress(UserError):  # a damaged file
                distances[path.stem] = distance_share(self.vectors, mapped_array(path))
        return distances

    def _nearest(self, distances: dict[str, float]) -> str | None:
        """Return the fingerprint of the nearest vectors, if they are near enough."""
        name = min(distances, key=lambda one: (distances[one], one), default=None)
        return name if name is not None and distances[name] <= _SAME_SHARE else None

    def _exact_digest(self) -> str:
        return hashlib.sha256(self.vectors.tobytes()).hexdigest()[:32]

    def _folder(self, folder: Path) -> Path:
        return folder / _FOLDER / hashlib.sha256(self.subject.encode()).hexdigest()[:32]


def distance_share(probe: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Return how far two embedders' vectors of an image are apart, against those of two images.

    It is the mean of 1 − cosine over the same images, divided by the mean over different images.

    Args:
        probe: (images, dim) of one embedder, L2-normalised.
        other: of the other one, of the same images.
    """
    if probe.shape != other.shape:
        return float("inf")
    rows, others = probe.astype(np.float64), other.astype(np.float64)
    moved = np.square(rows - others).sum(axis=1).mean() / 2
    if moved == 0:
        return 0.0
    gaps = np.square(rows[:, None] - rows[None]).sum(axis=2) / 2
    spread = gaps.sum() / (len(rows) * (len(rows) - 1))
    return float(moved / spread) if spread else float("inf")


# `python:` a callable from images to vectors, by the name of its module and attribute.
#
# The callable gets (batch, height, width, channels) uint8, in RGB or grey, fitted to its input
# size, and returns (batch, dim) numbers: an array, a tensor or lists. See docs/any-model.md.

_INPUT = "unibct_input"
_WORDS = {"size", "channels", "fit"}
_PROBE_IMAGES = 8
_PROBE_DECIMALS = 2  # of a probe's vectors in a fingerprint: more than rounding changes


def open_callable(reference: Reference, opener: Opener) -> "PythonEmbedder":
    """Import the module that the reference names, and nothing else."""
    embedder = _instance(reference, find_attribute(reference.place))
    return PythonEmbedder(reference, embedder, opener.probes)


class PythonEmbedder(BlackBox):
    """A user's callable as an embedder.

    Args:
        reference: how the user named it.
        embedder: an object with ``embed``, or a callable. Its attributes ``unibct_input`` (a
            dictionary with ``size``, ``channels`` and ``fit``), ``dim`` and ``fingerprint`` are
            used if it has them.
        probes: a folder with probes that are known already, see ``Probe``.

    Attributes:
        probe: what tells it from others; None if it states a fingerprint itself.
    """

    def __init__(self, reference: Reference, embedder: Any, probes: Path | None = None) -> None:
        self.name = reference.text
        self._call: Callable[[Pixels], Any] = getattr(embedder, "embed", embedder)
        own_words = _stated_words(reference, embedder)
        self.input = _input_of(reference, own_words | dict(reference.options))
        probe = self._checked(self._call(self._probe_images()), _PROBE_IMAGES)
        self.dim = int(getattr(embedder, "dim", probe.shape[1]))
        if probe.shape[1] != self.dim:
            raise UserError(
                f"{self.name} says dim = {self.dim} but returns vectors of {probe.shape[1]}"
            )
        stated = _stated_fingerprint(reference, embedder)
        self.probe: Probe | None = None
        if stated is None:
            self.probe = _probe(reference, probe, self.input)
            self.fingerprint = self.probe.known_fingerprint(probes)
        elif "size" in own_words and self.input == _input_of(reference, own_words):
            self.fingerprint = stated
        else:  # the input is not, or not only, what the object says itself
            self.fingerprint = _digest_of_both(stated, self.input)

    def outputs(self, pixels: Pixels) -> NDArray[np.float32]:
        """Call the callable with one batch, and check what it returns."""
        if not len(pixels):
            return np.empty((0, self.dim), dtype=np.float32)
        # Mirrored images are views that torch cannot take, and cached ones are read-only.
        images = np.require(pixels, requirements=["C", "W"])
        vectors = self._checked(self._call(images), len(pixels))
        if vectors.shape[1] != self.dim:
            raise UserError(f"{self.name} returns vectors of {vectors.shape[1]}, not {self.dim}")
        return vectors

    def _checked(self, returned: Any, count: int) -> NDArray[np.float32]:
        try:
            vectors = to_numpy(returned)
            ok = vectors.ndim == 2 and len(vectors) == count and vectors.dtype.kind in "fiu"
        except (TypeError, ValueError) as error:
            raise UserError(f"{self.name} returns no array of vectors: {error}") from error
        if not ok:
            raise UserError(
                f"{self.name} returns {vectors.dtype} of shape {vectors.shape} for {count} images; "
                "it must return numbers of shape (images, dim)"
            )
        return vectors.astype(np.float32, copy=False)

    def _probe_images(self) -> Pixels:
        """Return a few images that are the same everywhere."""
        rng = np.random.Generator(np.random.PCG64(0))
        size = (_PROBE_IMAGES, *self.input.frame[:3])
        return np.frombuffer(rng.bytes(int(np.prod(size))), dtype=np.uint8).reshape(size).copy()


def _instance(reference: Reference, value: Any) -> Any:
    """Call a class or a function without arguments: it makes the embedder."""
    is_factory = isinstance(value, type)
    if inspect.isfunction(value):
        is_factory = not inspect.signature(value).parameters
    if is_factory:
        value = cast("Callable[[], Any]", value)()
    if not callable(getattr(value, "embed", value)):
        raise UserError(f"{reference.text} is neither a callable nor an object with `embed`")
    return value


def _stated_words(reference: Reference, embedder: Any) -> dict[str, Any]:
    """Return what an object says itself about the images that it takes."""
    stated: Any = getattr(embedder, _INPUT, {})
    if not isinstance(stated, dict) or not set(cast(dict[str, Any], stated)) <= _WORDS:
        raise UserError(
            f"{reference.text}: {_INPUT} must be a dictionary with {', '.join(sorted(_WORDS))}"
        )
    return cast(dict[str, Any], stated)


def _stated_fingerprint(reference: Reference, embedder: Any) -> str | None:
    """Return the fingerprint that an object states itself; None if it states none."""
    stated: Any = getattr(embedder, "fingerprint", None)
    if stated is not None and not isinstance(stated, str):
        raise UserError(
            f"{reference.text}: fingerprint must be a text such as 'search-2021-v3', not "
            f"{type(stated).__name__}"
        )
    return stated


def _input_of(reference: Reference, words: dict[str, Any]) -> InputSpec:
    """Return the images that it takes, from their size and perhaps channels and fit."""
    if "size" not in words:
        raise UserError(
            f"{reference.text} does not say which images it takes: give it an attribute "
            f'{_INPUT} = {{"size": 112, "channels": 3}}, or write ?size=112&channels=3'
        )
    size = words["size"]
    if not isinstance(size, str):
        size = "x".join(str(side) for side in np.atleast_1d(size).tolist())
    channels = str(words.get("channels", 3))
    if channels not in ("1", "3"):
        raise UserError(f"{reference.text}: channels must be 1 or 3")
    return InputSpec(*parse_size(size), int(channels), fit=words.get("fit", DEFAULT_FIT))


def _digest_of_both(stated: str, spec: InputSpec) -> str:
    """Return a digest of a stated fingerprint and of the input that was asked for."""
    described = f"{stated} {spec.height}x{spec.width}x{spec.channels} {spec.fit}"
    return hashlib.sha256(described.encode()).hexdigest()[:32]


def _probe(reference: Reference, vectors: NDArray[np.float32], spec: InputSpec) -> Probe:
    """Return a probe with a digest of the name, of the rounded vectors, and of the fit.

    Probe images have the input's size already, so that a fit does not change them.
    """
    unit_rows, fit = normalized(vectors).astype(np.float32), spec.fit
    # + 0.0 turns −0.0 into 0.0
    rounded = np.round(unit_rows.astype(np.float64), _PROBE_DECIMALS) + 0.0
    digest = hashlib.sha256(f"{reference.place} {rounded.shape}".encode())
    digest.update(np.ascontiguousarray(rounded, dtype="<f8").tobytes())
    if fit != DEFAULT_FIT:  # with it, fingerprints are those of earlier versions
        digest.update(fit.encode())
    subject = f"{reference.place} {spec.height}x{spec.width}x{spec.channels} {fit}"
    return Probe(subject, unit_rows, digest.hexdigest()[:32])
