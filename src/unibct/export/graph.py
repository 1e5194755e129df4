"""A model as an ONNX graph that takes pixels and gives embeddings, and such a file when it is run.

The graph takes ``images``, uint8 of shape (batch, height, width, channels) in RGB or grey,
already fitted to the input's size, and gives ``embeddings``, float32 of shape (batch, dim),
L2-normalised. Normalisation of the pixels, the network and the map of an adapted model are
inside. A model with another dimension than its old one's is exported as it is, or with its
projection into that space.
"""

import json
import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from unibct.data.decoding import Pixels
from unibct.errors import UserError, first_line
from unibct.models.input import channel_number
from unibct.models.model import Model, evaluating
from unibct.models.old_space import OldSpaceModel, projection_weight

Exportable: TypeAlias = Model | OldSpaceModel
INPUT_NAME, OUTPUT_NAME = "images", "embeddings"
INPUT_KEY, DIM_KEY, FINGERPRINT_KEY = "unibct.input", "unibct.dim", "unibct.fingerprint"
_NEEDED = ("onnx", "onnxscript", "onnxruntime")
_BATCH = 64


class PixelsToEmbeddings(nn.Module):
    """A model as one module: (batch, height, width, channels) uint8 -> (batch, dim)."""

    def __init__(self, exported: Exportable) -> None:
        super().__init__()
        model = own_model(exported)
        spec, channels = model.input, range(model.input.channels)
        means = torch.tensor([channel_number(spec.mean, c) for c in channels])
        deviations = torch.tensor([channel_number(spec.std, c) for c in channels])
        self.network = model.network
        self.vector_map = model.vector_map
        self.projection = None if exported is model else projection_weight(model.network)
        self.factor: Tensor
        self.offset: Tensor
        self.register_buffer("factor", (1 / (255 * deviations)).view(1, -1, 1, 1))
        self.register_buffer("offset", (means / deviations).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Return the L2-normalised embeddings."""
        pixels = images.permute(0, 3, 1, 2).float() * self.factor - self.offset
        vectors = F.normalize(self.network(pixels).float(), dim=1)
        if self.projection is not None:
            return F.normalize(vectors @ self.projection.T, dim=1)
        return vectors if self.vector_map is None else self.vector_map(vectors)


def own_model(exported: Exportable) -> Model:
    """Return the model itself, also of one in the old space."""
    return exported.model if isinstance(exported, OldSpaceModel) else exported


def require_onnx() -> None:
    """Refuse to go on without the libraries, and say how to install them."""
    for name in _NEEDED:
        try:
            import_module(name)
        except ImportError as error:
            raise UserError(
                f"the export needs the library {name}: pip install 'unibct[onnx]'"
            ) from error


def input_description(model: Exportable) -> dict[str, Any]:
    """Return what the file says about its images, as plain values."""
    more = {"fit": model.input.fit, "layout": "nhwc", "order": "rgb", "dtype": "uint8"}
    return model.input.description() | more


def file_metadata(model: Exportable) -> dict[str, str]:
    """Return what the file says about the model."""
    base_model = own_model(model)
    return {
        INPUT_KEY: json.dumps(input_description(model)),
        DIM_KEY: str(model.dim),
        FINGERPRINT_KEY: model.fingerprint,
        "unibct.architecture": base_model.architecture,
        "unibct.old_model": base_model.old_fingerprint or "",
        "unibct.space": "own" if base_model is model else "old",
        "unibct.version": metadata.version("unibct"),
    }


def write_graph(model: Exportable, path: Path) -> None:
    """Write the graph of a model on the CPU to one file, with a batch of any size."""
    require_onnx()
    example = torch.zeros((2, *model.input.frame.shape), dtype=torch.uint8)
    try:
        with evaluating(own_model(model).network), torch.no_grad(), silenced_libraries():
            program = torch.onnx.export(
                PixelsToEmbeddings(model).eval(),
                (example,),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                input_names=[INPUT_NAME],
                output_names=[OUTPUT_NAME],
                verbose=False,
            )
            assert program is not None
            program.model.metadata_props.update(file_metadata(model))
            program.save(str(path), external_data=False)
    except Exception as error:  # the exporter raises many kinds of errors
        reason = first_line(error)
        raise UserError(
            f"{own_model(model).architecture} cannot be exported to ONNX: {reason}"
        ) from error


def add_metadata(path: Path, values: dict[str, str]) -> None:
    """Write more metadata into an ONNX file, in place."""
    onnx = import_module("onnx")
    model = onnx.load(str(path))
    known = {entry.key: entry.value for entry in model.metadata_props}
    onnx.helper.set_model_props(model, known | values)
    onnx.save(model, str(path))


@contextmanager
def silenced_libraries() -> Generator[None]:
    """Keep the notes and the advice of the exporters off the terminal."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)


class ExportedModel:
    """An exported file that embeds images."""

    def __init__(self, path: Path) -> None:
        runtime = import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        providers = ["CPUExecutionProvider"]
        self._session: Any = runtime.InferenceSession(str(path), options, providers=providers)

    @property
    def metadata(self) -> dict[str, str]:
        """What the file says about the model."""
        return dict(self._session.get_modelmeta().custom_metadata_map)

    def embed_pixels(self, pixels: Pixels) -> NDArray[np.float32]:
        """Map (images, height, width, channels) -> (images, dim), a batch at a time."""
        parts: list[NDArray[np.float32]] = []
        for start in range(0, len(pixels), _BATCH):
            images = np.ascontiguousarray(pixels[start : start + _BATCH])
            parts.append(self._session.run([OUTPUT_NAME], {INPUT_NAME: images})[0])
        return np.concatenate(parts)
