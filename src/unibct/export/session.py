"""An exported file, run by ONNX Runtime."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unibct.data.decoding import Pixels
from unibct.export.graph import INPUT_NAME, OUTPUT_NAME

_BATCH = 64


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
