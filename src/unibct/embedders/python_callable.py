"""`python:` a callable from images to vectors, by the name of its module and attribute.

The callable gets (batch, height, width, channels) uint8, in RGB or grey, fitted to its input size,
and returns (batch, dim) numbers: an array, a tensor or lists. See docs/any-model.md.
"""

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unibct.arrays import normalized, to_numpy
from unibct.data.decoding import DEFAULT_FIT, Pixels
from unibct.embedders.black_box import BlackBox
from unibct.embedders.probes import Probe
from unibct.embedders.reference import Reference, parse_size
from unibct.embedders.table import Opening
from unibct.errors import UserError
from unibct.models.input import InputSpec
from unibct.python_reference import find_attribute

_INPUT = "unibct_input"
_WORDS = {"size", "channels", "fit"}
_PROBE_IMAGES = 8
_PROBE_DECIMALS = 2  # of a probe's vectors in a fingerprint: more than rounding changes


def recognises(path: Path) -> bool:
    """Return False: a Python object is no path."""
    return False


def open_reference(reference: Reference, opening: Opening) -> "PythonEmbedder":
    """Import the module that the reference names, and nothing else."""
    embedder = _instance(reference, find_attribute(reference.place))
    return PythonEmbedder(reference, embedder, opening.probes)


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
