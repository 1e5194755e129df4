"""A model: a network, what it takes, where it comes from, and its folder on disk."""

import hashlib
import json
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors
import safetensors.torch
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from unibct.arrays import is_array, same_kind, to_numpy
from unibct.data.augmentation import mirrored
from unibct.data.decoding import Pixels, UnreadableImageError, decode, fit, pillow_pixels
from unibct.errors import UserError
from unibct.files import atomic_file, read_json, write_json
from unibct.maps.adapter import Adapter
from unibct.models.architectures.table import InputSpec, build_network

FORMAT = 1
DESCRIPTION_FILE = "model.json"
WEIGHTS_FILE = "model.safetensors"
CLASSIFIER_FILE = "classifier.safetensors"
ADAPTER_FILE = "adapter.safetensors"
_LOADING_ERRORS = (
    OSError,
    TypeError,
    AttributeError,
    RuntimeError,
    safetensors.SafetensorError,
)
_RESIZE = "stretch, bilinear"  # part of what determines the output


@dataclass(frozen=True)
class Model:
    """A network that embeds images.

    Attributes:
        network: (batch, channels, height, width) -> (batch, dim).
        architecture: its name in ``ARCHITECTURES``.
        input: size, channels and normalisation of the images it takes.
        dim: dimension of its embeddings.
        class_names: the classes it was trained on.
        class_weights: (classes, dim) the trained classifier's rows, if they are at hand.
        training: how it was trained: recipe, data, number of images.
        old_fingerprint: of the old model that it was trained to be compatible with.
        adapter: maps what the network gives into an old model's space, if it was not trained to.
    """

    network: nn.Module
    architecture: str
    input: InputSpec
    dim: int
    class_names: tuple[str, ...] = ()
    class_weights: Tensor | None = None
    training: dict[str, Any] = field(default_factory=dict)
    old_fingerprint: str | None = None
    adapter: Adapter | None = None

    @property
    def device(self) -> torch.device:
        """Where the network's weights are."""
        return next(self.network.parameters()).device

    @property
    def fingerprint(self) -> str:
        """A digest of what determines the output: architecture, input and weights."""
        state = hashlib.sha256()
        described = [FORMAT, self.architecture, asdict(self.input), self.dim, _RESIZE]
        state.update(json.dumps(described, sort_keys=True).encode())
        for name, tensor in sorted(self.network.state_dict().items()):
            if name.endswith("num_batches_tracked"):
                continue
            array = np.ascontiguousarray(to_numpy(tensor))
            state.update(f"{name} {array.dtype} {array.shape}".encode())
            state.update(array.tobytes())
        if self.adapter is not None:
            for name, tensor in sorted(self.adapter.tensors().items()):
                state.update(f"adapter {self.adapter.kind} {name} {tuple(tensor.shape)}".encode())
                state.update(np.ascontiguousarray(to_numpy(tensor)).tobytes())
        return state.hexdigest()[:32]

    def embed(self, images: Any, *, batch_size: int = 256) -> Any:
        """L2-normalised embeddings of images.

        Args:
            images: uint8, (n, h, w), (n, h, w, c) or (n, c, h, w) with c = 1 or 3, NumPy or
                torch; or a sequence of such images, of PIL images or of file paths, of any size.
            batch_size: images that go through the network at a time.

        Returns:
            (n, dim) float32; torch if ``images`` is a tensor, else NumPy.
        """
        if batch_size < 1:
            raise UserError(f"batch_size must be at least 1, not {batch_size}")
        listed = _as_image_list(images)
        vectors = np.empty((len(listed), self.dim), dtype=np.float32)
        size = self.input.size
        for start in range(0, len(listed), batch_size):
            part = listed[start : start + batch_size]
            vectors[start : start + len(part)] = self.embed_pixels(
                np.stack([fit(_pixels(image, start + i), *size) for i, image in enumerate(part)])
            )
        return same_kind(vectors, images)

    def embed_pixels(self, pixels: Pixels) -> NDArray[np.float32]:
        """One batch that is fitted already: (batch, height, width, channels) -> (batch, dim)."""
        with torch.inference_mode():
            vectors = F.normalize(self._network_output(pixels), dim=1)
            return (vectors if self.adapter is None else self.adapter(vectors)).cpu().numpy()

    def raw_embeddings(self, pixels: Pixels, *, flip_test: bool = True) -> NDArray[np.float32]:
        """The network's outputs as they are, for pooling; those of the mirror images added.

        How long an output is tells how sure the network is, and counts where several are pooled.
        (An adapter takes and gives outputs of length 1.)
        """
        views = (pixels, mirrored(pixels)) if flip_test else (pixels,)
        with torch.inference_mode():
            outputs = [self._network_output(view) for view in views]
            if self.adapter is not None:
                outputs = [self.adapter(output) for output in outputs]
            return torch.stack(outputs).sum(dim=0).cpu().numpy()

    def _network_output(self, pixels: Pixels) -> Tensor:
        with evaluating(self.network):
            return self.network(to_input(pixels, self.input, self.device)).float()

    def to(self, device: str | torch.device) -> "Model":
        """Move the network (in place) to a device."""
        self.network.to(device)
        return self

    def adapted(self, adapter: Adapter, old: "Model") -> "Model":
        """The same network, its embeddings mapped into the old model's space."""
        return replace(
            self,
            adapter=adapter,
            dim=old.dim,
            class_weights=None,
            training=self.training | {"adapter": adapter.kind},
            old_fingerprint=old.fingerprint,
        )


@contextmanager
def evaluating(network: nn.Module) -> Generator[None]:
    """Evaluation mode for a block, then the mode it had."""
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)


def to_input(pixels: Pixels, spec: InputSpec, device: torch.device) -> Tensor:
    """(batch, height, width, channels) uint8 -> (batch, channels, height, width) normalised."""
    tensor = torch.from_numpy(np.ascontiguousarray(pixels)).to(device).permute(0, 3, 1, 2)
    return tensor.float().div_(255).sub_(spec.mean).div_(spec.std)


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file, whole or not at all."""
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    try:
        with atomic_file(path) as temporary:
            safetensors.torch.save_file(contiguous, temporary, metadata=metadata)
    except safetensors.SafetensorError as error:
        raise UserError(f"{path} cannot be written: {error}; is the disk full?") from error


def save_model(model: Model, folder: str | Path) -> None:
    """Write a model folder; the description comes last and makes it complete."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DESCRIPTION_FILE).unlink(missing_ok=True)
    save_tensors(folder / WEIGHTS_FILE, model.network.state_dict(), {"format": "pt"})
    if model.class_weights is None:
        (folder / CLASSIFIER_FILE).unlink(missing_ok=True)
    else:
        weights = {"class_weights": model.class_weights}
        save_tensors(folder / CLASSIFIER_FILE, weights, {"format": "pt"})
    if model.adapter is None:
        (folder / ADAPTER_FILE).unlink(missing_ok=True)
    else:
        save_tensors(folder / ADAPTER_FILE, model.adapter.tensors(), {"format": "pt"})
    write_json(
        folder / DESCRIPTION_FILE,
        {
            "format": FORMAT,
            "architecture": model.architecture,
            "input": asdict(model.input) | {"resize": _RESIZE},
            "dim": model.dim,
            "fingerprint": model.fingerprint,
            "classifier": _digest(model.class_weights),
            "old_model": model.old_fingerprint,
            "adapter": None if model.adapter is None else model.adapter.kind,
            "training": model.training,
            "classes": list(model.class_names),
        },
    )


def load_model(
    path: str | Path, *, device: str | torch.device = "cpu", with_classifier: bool = True
) -> Model:
    """A model from its folder; its weights are checked against its fingerprint.

    Args:
        path: the folder.
        device: where the network goes.
        with_classifier: read the class weights too, which may be larger than the network.
    """
    folder = Path(path)
    if not (folder / DESCRIPTION_FILE).is_file():
        unfinished = any(folder.glob("checkpoint-*"))
        hint = (
            "its training has not finished; go on with `unibct train … --resume`"
            if unfinished
            else f"there is no {DESCRIPTION_FILE} in it"
        )
        raise UserError(f"{folder} is not a model folder: {hint}")
    described = read_json(folder / DESCRIPTION_FILE)
    try:
        if described["format"] != FORMAT:
            raise UserError(
                f"{folder} has format {described['format']}; this unibct reads {FORMAT}"
            )
        spec = InputSpec(**{k: v for k, v in described["input"].items() if k != "resize"})
        adapter = None
        if described.get("adapter") is not None:
            tensors = safetensors.torch.load_file(folder / ADAPTER_FILE)
            adapter = Adapter.of_tensors(described["adapter"], tensors)
        dim = described["dim"] if adapter is None else adapter.new_dim
        network = build_network(described["architecture"], spec, dim)
        network.load_state_dict(safetensors.torch.load_file(folder / WEIGHTS_FILE))
        classifier = folder / CLASSIFIER_FILE
        model = Model(
            network=network.eval(),
            architecture=described["architecture"],
            input=spec,
            dim=described["dim"],
            class_names=tuple(described["classes"]),
            class_weights=(
                safetensors.torch.load_file(classifier)["class_weights"]
                if with_classifier and classifier.is_file()
                else None
            ),
            training=described["training"],
            old_fingerprint=described["old_model"],
            adapter=adapter,
        )
        expected, classifier_digest = described["fingerprint"], described["classifier"]
    except UserError:
        raise
    except KeyError as error:
        raise UserError(f"{folder / DESCRIPTION_FILE} lacks the entry {error}") from error
    except _LOADING_ERRORS as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{folder} cannot be loaded as a model: {reason}") from error
    if model.class_weights is not None and _digest(model.class_weights) != classifier_digest:
        raise UserError(
            f"{folder / CLASSIFIER_FILE} does not belong to {DESCRIPTION_FILE}; "
            "restore all files from one copy"
        )
    if model.fingerprint != expected:
        raise UserError(
            f"{folder / WEIGHTS_FILE} does not belong to {DESCRIPTION_FILE}: the fingerprint is "
            f"{model.fingerprint} instead of {expected}; restore both files from one copy"
        )
    return model.to(device)


def _digest(class_weights: Tensor | None) -> str | None:
    if class_weights is None:
        return None
    return hashlib.sha256(to_numpy(class_weights).tobytes()).hexdigest()[:32]


def _as_image_list(images: Any) -> Sequence[Any]:
    """Images one by one, channels last."""
    if isinstance(images, (str, Path, Image.Image)):
        raise UserError("embed takes several images: put a single one into a list")
    if not is_array(images):
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
