"""A model: a network that embeds images, with what is known about it."""

import hashlib
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from numbers import Integral
from pathlib import Path
from threading import Lock
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from unibct.arrays import checked_embeddings, is_array, normalized, same_kind, to_numpy
from unibct.data.augmentation import mirrored
from unibct.data.decoding import (
    VECTORS,
    Pixels,
    UnreadableImageError,
    decode,
    fit,
    pillow_pixels,
)
from unibct.data.image_set import ImageSet, class_identities
from unibct.data.training_classes import (
    NO_CLASSES,
    SCORE_SCALE_MEASURED,
    UNKNOWN_CLASSES,
    Choice,
    TrainingClasses,
    training_classes,
)
from unibct.errors import UserError
from unibct.maps.vector_map import VectorMap
from unibct.models.architectures import without_library
from unibct.models.embedder import Embedder, ImageEmbedder
from unibct.models.input import InputSpec, to_input

_FULL = "ieee"
_torch: Any = torch.backends  # of which some names are not typed
_SETTINGS: tuple[Any, ...] = (
    _torch.cuda.matmul,
    _torch.cudnn.conv,
    _torch.cudnn.rnn,
    _torch.mkldnn.matmul,
    _torch.mkldnn.conv,
    _torch.mkldnn.rnn,
)
_lock = Lock()
_blocks = 0  # that are open now, in any thread
_before: list[str] = []


@contextmanager
def full_float32() -> Generator[None]:
    """Compute in full float32 in a block; after the last of such blocks the setting is as before.

    Torch lets convolutions on newer GPUs round their input to ten bits (TF32), and programs often
    allow it for matrix products. Then a model's vectors would depend on the device, by 1e-3 of
    their length. The setting is one for all threads of the process.
    """
    global _blocks
    with _lock:
        if _blocks == 0:
            _before[:] = [setting.fp32_precision for setting in _SETTINGS]
            _set([_FULL] * len(_SETTINGS))
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if _blocks == 0:
                _set(_before)


def _set(precisions: list[str]) -> None:
    for setting, precision in zip(_SETTINGS, precisions, strict=True):
        setting.fp32_precision = precision


SCORE_SCALE = "score_scale"  # in ``Model.training``
SCALE_MEASURED_ON = "score_scale_measured_on"  # beside it, if it is known

_FINGERPRINT_FORMAT = 1
_KNOWN_FINGERPRINT = "_known_fingerprint"  # in ``Model.__dict__``: the mark of its weights, and it


@dataclass(frozen=True)
class Model:
    """A network that embeds images."""

    network: nn.Module  # (batch, channels, height, width) -> (batch, dim)
    architecture: str  # its name in ``ARCHITECTURES``, or FAMILY:NAME of another library's
    input: InputSpec  # size, channels, fit and normalisation of the images it takes
    dim: int  # dimension of its embeddings
    class_names: tuple[str, ...] = ()  # the classes it was trained on
    # (classes, dim) the trained classifier's rows, or None if they are not loaded.
    class_weights: Tensor | None = None
    # How it was trained: recipe, data, number of images.
    training: dict[str, Any] = field(default_factory=dict)
    old_fingerprint: str | None = None  # of the old model that it is compatible with
    # Maps the network's output into the old model's space, for a model that was not trained to be
    # compatible.
    vector_map: VectorMap | None = None
    class_source: str | None = None  # of the training set, see ``ImageSet``
    # What it has learnt from besides ``class_names``: the classes that its map was fitted on, and
    # those of its first weights, or of the model that made the vectors it was trained on,
    # incomplete if some are not known; and what was chosen for it.
    further_classes: TrainingClasses = NO_CLASSES
    # What another library needs to build the network, see ``Architecture``.
    architecture_config: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """What to call it in messages."""
        return f"the {self.architecture} model {self.fingerprint[:8]}"

    @property
    def training_classes(self) -> TrainingClasses:
        """All classes that it has learnt from."""
        return training_classes(self.class_names, self.class_source) | self.further_classes

    @property
    def class_identities(self) -> tuple[str, ...]:
        """What tells each class it was trained on from all others, see ``class_identities``."""
        return class_identities(self.class_names, self.class_source)

    @property
    def score_scale(self) -> float | None:
        """What puts scores of its queries with old rows on the old scale; None if unknown.

        Multiply each score by it, or with inner products the query vector. The old system's
        thresholds then apply. See ``embeddings/score_scale.py``.
        """
        return self.training.get(SCORE_SCALE)

    @property
    def device(self) -> torch.device:
        """Where the network's weights are; the CPU if it has none."""
        tensors = chain(self.network.parameters(), self.network.buffers())
        return next((tensor.device for tensor in tensors), torch.device("cpu"))

    @property
    def fingerprint(self) -> str:
        """A digest of what determines the output: architecture, input and weights.

        It is computed once, and again if the weights were changed in place since.
        """
        known, mark = self.__dict__.get(_KNOWN_FINGERPRINT), self._weights_mark()
        if known is None or known[0] != mark:
            known = mark, self._digest()
            self.__dict__[_KNOWN_FINGERPRINT] = known
        return known[1]

    def _weights_mark(self) -> list[Any]:
        """Return what changes when a weight does: each tensor's place, version and last number.

        Fused optimizers do not count versions, but move every number.
        """
        tensors = [*self.network.state_dict().values()]
        if self.vector_map is not None:
            tensors += self.vector_map.tensors().values()
        return [
            (
                tensor.data_ptr(),
                None if tensor.is_inference() else tensor._version,  # pyright: ignore[reportPrivateUsage]
                tensor[(-1,) * tensor.ndim].item() if tensor.numel() else None,
            )
            for tensor in tensors
            if isinstance(tensor, Tensor)
        ]

    def _digest(self) -> str:
        digest = hashlib.sha256()
        spec = self.input
        header = [_FINGERPRINT_FORMAT, self.architecture, spec.normalisation, self.dim, spec.resize]
        digest.update(json.dumps(header, sort_keys=True).encode())
        if self.architecture_config is not None:
            config = without_library(self.architecture_config)
            digest.update(f"config {json.dumps(config, sort_keys=True)}".encode())
        for name, tensor in sorted(self.network.state_dict().items()):
            if name.endswith("num_batches_tracked"):
                continue
            array = np.ascontiguousarray(to_numpy(tensor))
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.tobytes())
        if self.vector_map is not None:
            for name, tensor in sorted(self.vector_map.tensors().items()):
                digest.update(
                    f"adapter {self.vector_map.kind} {name} {tuple(tensor.shape)}".encode()
                )
                digest.update(np.ascontiguousarray(to_numpy(tensor)).tobytes())
        return digest.hexdigest()[:32]

    def embed(self, images: Any, *, batch_size: int = 256) -> Any:
        """Return L2-normalised embeddings of images.

        Args:
            images: uint8, (n, h, w), (n, h, w, c) or (n, c, h, w) with c = 1 or 3, NumPy or
                torch; or a sequence of such images, of PIL images or of file paths, of any size.
                A model of finished vectors takes (n, width) numbers, and scales rows to length 1.
            batch_size: how many images go through the network at a time.

        Returns:
            (n, dim) float32; torch if ``images`` is a tensor, else NumPy.
        """
        return embed_in_batches(self, images, batch_size)

    def embed_pixels(self, pixels: Pixels) -> NDArray[np.float32]:
        """Return L2-normalised embeddings of one batch that already has the input's size.

        The shapes are (batch, height, width, channels) -> (batch, dim).
        """
        with torch.inference_mode(), full_float32():
            vectors = F.normalize(self._network_output(pixels), dim=1)
            return (vectors if self.vector_map is None else self.vector_map(vectors)).cpu().numpy()

    def raw_embeddings(self, pixels: Pixels, *, flip_test: bool = True) -> NDArray[np.float32]:
        """Return embeddings of one batch that are not normalised, for pooling.

        (batch, height, width, channels) -> (batch, dim). The length of an output shows how sure the
        network is, and acts as its weight when several are pooled. (The outputs of a map have
        length 1.) ``flip_test`` adds the outputs of the mirrored images, which finished vectors
        do not have.
        """
        has_mirror = flip_test and self.input.fit != VECTORS
        views = (pixels, mirrored(pixels)) if has_mirror else (pixels,)
        with torch.inference_mode(), full_float32():
            outputs = [self._network_output(view) for view in views]
            if self.vector_map is not None:
                outputs = [self.vector_map(output) for output in outputs]
            return torch.stack(outputs).sum(dim=0).cpu().numpy()

    def _network_output(self, pixels: Pixels) -> Tensor:
        with evaluating(self.network):
            return self.network(to_input(pixels, self.input, self.device)).float()

    def to(self, device: str | torch.device) -> "Model":
        """Move the network (in place) to a device."""
        self.network.to(device)
        return self

    def with_score_scale(
        self,
        scale: float | None,
        measured_on: str | None = None,
        choice: Choice | None = None,
    ) -> "Model":
        """Return the same model with another score scale, or with none.

        ``measured_on`` says in words which images it comes from; ``choice`` are these images, None
        for classes that it was trained on.
        """
        ours = {SCORE_SCALE: scale, SCALE_MEASURED_ON: None if scale is None else measured_on}
        training = {key: value for key, value in self.training.items() if key not in ours}
        known = {key: value for key, value in ours.items() if value is not None}
        further = self.further_classes.without(SCORE_SCALE_MEASURED)
        model = replace(self, training=training | known, further_classes=further)
        return model if scale is None or choice is None else model.with_choice(choice)

    def with_choice(self, choice: Choice) -> "Model":
        """Return the same model, which keeps what was chosen for it."""
        further = self.further_classes
        return replace(self, further_classes=replace(further, choices=further.choices | {choice}))

    def adapted(
        self, vector_map: VectorMap, old: Embedder, fitted_on: ImageSet | None = None
    ) -> "Model":
        """Return a model with the same network and a map into the old model's space.

        ``fitted_on`` are the images that the map was fitted on; None if they are not known.
        """
        bare = self.with_score_scale(None)  # its scale is that of another space
        further = bare.further_classes | (
            UNKNOWN_CLASSES
            if fitted_on is None
            else training_classes(fitted_on.class_names, fitted_on.class_source)
        )
        return replace(
            self,
            vector_map=vector_map,
            dim=old.dim,
            class_weights=None,
            training=bare.training | {"adapter": vector_map.kind},
            old_fingerprint=old.fingerprint,
            further_classes=further,
        )


def embed_in_batches(embedder: ImageEmbedder, images: Any, batch_size: Any) -> Any:
    """Return L2-normalised embeddings of images of any size, see ``Model.embed``."""
    step = int(batch_size) if isinstance(batch_size, Integral) else 0
    if step < 1:
        raise UserError(f"batch_size must be a whole number, at least 1, not {batch_size}")
    if embedder.input.fit == VECTORS:
        rows = checked_embeddings(images, "vectors")
        nonzero = rows.any(axis=1)
        if not nonzero.all():
            raise UserError(f"vectors has rows of zeros only, first row {int(nonzero.argmin())}")
        rows = normalized(rows).astype(np.float32, copy=False)  # of length 1, as those of files
        sequence: Sequence[Any] = list(rows[:, None, :, None])
    else:
        sequence = _as_sequence(images)
    vectors = np.empty((len(sequence), embedder.dim), dtype=np.float32)
    frame = embedder.input.frame
    for start in range(0, len(sequence), step):
        part = sequence[start : start + step]
        if frame.fit != VECTORS:
            part = [_pixels(image, start + i) for i, image in enumerate(part)]
        pixels = np.stack([fit(image, *frame) for image in part])
        vectors[start : start + len(part)] = embedder.embed_pixels(pixels)
    return same_kind(vectors, images)


@contextmanager
def evaluating(network: nn.Module) -> Generator[None]:
    """Put a network into evaluation mode for a block, then back into the mode it had."""
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)


def _as_sequence(images: Any) -> Sequence[Any]:
    """Return the images one by one; those of an array with the channels last."""
    if isinstance(images, (str, Path, Image.Image)):
        raise UserError("embed takes several images: put a single one into a list")
    if not is_array(images):
        if not isinstance(images, Iterable):
            raise UserError(
                f"embed takes an array or a sequence of images, not {type(images).__name__}"
            )
        return list(cast(Iterable[Any], images))
    array = to_numpy(images)
    if array.ndim == 4 and array.shape[3] not in (1, 3) and array.shape[1] in (1, 3):
        array = array.transpose(0, 2, 3, 1)
    if array.ndim == 3 and array.shape[2] in (1, 3):
        raise UserError("embed takes several images: put a single one into a list")
    if array.ndim not in (3, 4) or array.dtype != np.uint8:
        raise UserError(
            "images must be uint8 of shape (n, h, w), (n, h, w, c) or (n, c, h, w), not "
            f"{array.dtype} of shape {array.shape}"
        )
    return cast(Sequence[Any], array)


def _pixels(image: Any, index: int) -> NDArray[Any]:
    """Return the uint8 pixels of a file, a PIL image or an array, channels last."""
    if isinstance(image, (str, Path)):
        try:
            return decode(Path(image).read_bytes())
        except OSError as error:
            raise UserError(f"{image} cannot be read: {error.strerror}") from error
        except UnreadableImageError as error:
            raise UserError(f"{image} is not a readable image: {error}") from error
    if isinstance(image, Image.Image):
        return pillow_pixels(image)
    pixels = to_numpy(image)
    if pixels.ndim == 3 and pixels.shape[2] not in (1, 3) and pixels.shape[0] in (1, 3):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.dtype != np.uint8:
        raise UserError(f"image {index} is {pixels.dtype}; images are uint8, 0 to 255")
    return pixels
