"""`onnx:` an ONNX file, run by ONNX Runtime.

A file that unibct has exported describes its input in its metadata, under ``unibct.input``: JSON
with ``height``, ``width``, ``channels``, ``layout``, ``mean``, ``std``, ``order`` and ``fit``. For
any other file, size and layout come from the graph, and the rest from options.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct import progress
from unibct.data.decoding import DEFAULT_FIT, FITS, Pixels
from unibct.distributed.device import local_rank, pick_device
from unibct.embedders import Opener, Reference, parse_numbers, parse_size
from unibct.embedders.python_callable import BlackBox
from unibct.errors import UserError, first_line
from unibct.models.input import InputSpec

INPUT_KEY = "unibct.input"  # in the file's metadata
_CUDA = "CUDAExecutionProvider"
_LAYOUTS = ("nchw", "nhwc")
_ORDERS = ("rgb", "bgr")
_TYPES: dict[str, Any] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
}


@dataclass(frozen=True)
class OnnxInput:
    """The images that an ONNX file takes."""

    height: int
    width: int
    channels: int  # 1 or 3
    layout: str = "nchw"  # or nhwc
    # Per channel: the file gets (pixels/255 − mean)/std. One with uint8 input gets the pixels as
    # they are.
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    order: str = "rgb"  # or bgr
    fit: str = DEFAULT_FIT  # a name from ``FITS``: how an image of another shape is fitted

    def arranged(self, pixels: Pixels, dtype: Any) -> NDArray[Any]:
        """Return (batch, height, width, channels) uint8 pixels as the file takes them."""
        images: NDArray[Any] = pixels[..., ::-1] if self.order == "bgr" else pixels
        if dtype != np.uint8:
            mean, std = (np.array(values, dtype=np.float32) for values in (self.mean, self.std))
            images = ((images.astype(np.float32) / 255 - mean) / std).astype(dtype, copy=False)
        if self.layout == "nchw":
            images = images.transpose(0, 3, 1, 2)
        return np.ascontiguousarray(images)


def is_onnx(path: Path) -> bool:
    """Return whether a path is an ONNX file."""
    return path.suffix == ".onnx" and path.is_file()


def open_onnx(reference: Reference, opener: Opener) -> "OnnxEmbedder":
    """Open the file, and say what was assumed about its input."""
    if not reference.path.is_file():
        raise UserError(f"{reference.place} is not there")
    session = _session(reference.path, opener)
    inputs = session.get_inputs()
    if len(inputs) != 1:
        raise UserError(f"{reference.place} has {len(inputs)} inputs; an embedder has one")
    if inputs[0].type not in _TYPES:
        raise UserError(f"{reference.place} takes {inputs[0].type}; images are float or uint8")
    ignored = [name for name in ("mean", "std") if name in reference.options]
    if ignored and _TYPES[inputs[0].type] == np.uint8:
        raise UserError(f"{reference.text}: the file takes pixels 0 to 255; leave {ignored[0]} out")
    described = session.get_modelmeta().custom_metadata_map.get(INPUT_KEY)
    spec = _input_of(reference, inputs[0].shape, described)
    embedder = OnnxEmbedder(reference, session, spec)
    if described is None:
        takes, options = "pixels 0 to 255", "order=bgr"
        if _TYPES[inputs[0].type] != np.uint8:
            mean, std = (",".join(f"{v:g}" for v in values) for values in (spec.mean, spec.std))
            takes = f"(pixels/255 − mean)/std with mean={mean} std={std}"
            options = f"mean=…&std=…&{options}"
        progress.note(
            f"{reference.place} says nothing about its input: taken as {spec.height}×{spec.width}×"
            f"{spec.channels} {spec.order} in {spec.layout}, {takes}; if that is wrong, write "
            f"onnx:FILE?{options}"
        )
    return embedder


class OnnxEmbedder(BlackBox):
    """An ONNX file as an embedder; its fingerprint is a digest of the file and of its input."""

    def __init__(self, reference: Reference, session: Any, spec: OnnxInput) -> None:
        self.name = reference.text
        self.input = InputSpec(spec.height, spec.width, spec.channels, fit=spec.fit)
        self._session = session
        self._spec = spec
        first = session.get_inputs()[0]
        self._input_name, self._dtype = first.name, _TYPES[first.type]
        self._batch = first.shape[0] if isinstance(first.shape[0], int) else None
        self._output = _output_name(reference, session)
        self.dim = len(self._run(np.zeros((1, *self.input.frame[:3]), dtype=np.uint8))[0])
        self.fingerprint = _fingerprint(reference.path, spec, self._output)

    def outputs(self, pixels: Pixels) -> NDArray[np.float32]:
        """Return the file's vectors of one batch; a file with a fixed batch gets it in parts."""
        step = self._batch or max(len(pixels), 1)
        parts = [self._run(pixels[i : i + step]) for i in range(0, len(pixels), step)]
        return np.concatenate(parts) if parts else np.empty((0, self.dim), dtype=np.float32)

    def _run(self, pixels: Pixels) -> NDArray[np.float32]:
        count = len(pixels)
        if self._batch is not None and count < self._batch:
            pixels = np.concatenate([pixels, np.repeat(pixels[-1:], self._batch - count, axis=0)])
        images = self._spec.arranged(pixels, self._dtype)
        try:
            vectors = np.asarray(self._session.run([self._output], {self._input_name: images})[0])
        except Exception as error:  # ONNX Runtime has many classes of errors and no common base
            raise UserError(
                f"{self.name} cannot take images of {self._spec.height}x{self._spec.width} with "
                f"{self._spec.channels} channels ({first_line(error)}); if it leaves the size "
                "open, write onnx:FILE?size=HEIGHTxWIDTH with one that it takes"
            ) from error
        one_vector_each = vectors.ndim > 1 and vectors[:1].size == vectors.shape[1]
        if not one_vector_each or len(vectors) != len(pixels):
            raise UserError(
                f"{self.name}: the output {self._output!r} has the shape {vectors.shape} for "
                f"{len(pixels)} images; name the embedding with ?output=NAME"
            )
        return vectors.reshape(len(vectors), -1)[:count].astype(np.float32, copy=False)


def _session(path: Path, opener: Opener) -> Any:
    try:
        onnxruntime: Any = import_module("onnxruntime")
    except ImportError as error:
        raise UserError("onnx:FILE needs ONNX Runtime: pip install 'unibct[onnx]'") from error
    import torch

    options: Any = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # errors are raised, and said in one line
    gpu = _gpu(opener)
    providers: list[Any] = ["CPUExecutionProvider"]
    if gpu is not None and _CUDA in onnxruntime.get_available_providers():
        providers.insert(0, (_CUDA, {"device_id": gpu, "use_tf32": 0}))
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # ONNX Runtime has many classes of errors and no common base
        reason = first_line(error)
        raise UserError(f"{path} cannot be opened as an ONNX file: {reason}") from error
    # ONNX Runtime also goes on without CUDA if it cannot load it.
    if gpu is not None and _CUDA not in session.get_providers():
        _refuse_or_note_cpu(path, opener)
    return session


def _gpu(opener: Opener) -> int | None:
    """Return the number of the GPU to run on; None for the CPU."""
    name = str(opener.device)
    kind, _, number = name.partition(":")
    if kind == "cuda":  # perhaps torch has none, and ONNX Runtime has
        return int(number) if number.isdecimal() else local_rank()
    device = pick_device(name)
    if device.type not in ("cpu", "cuda") and name != "auto":
        raise UserError(
            f"ONNX Runtime does not run on {name} here: choose --device auto, which puts ONNX "
            "files on the CPU, or cpu"
        )
    return device.index if device.type == "cuda" else None


def _refuse_or_note_cpu(path: Path, opener: Opener) -> None:
    """Say that a file runs on the CPU; refuse it if someone asked for a GPU."""
    missing = "ONNX Runtime cannot use CUDA here"
    if opener.device == "auto":
        progress.note(f"{path} runs on the CPU: {missing} (onnxruntime-gpu can)")
        return
    raise UserError(
        f"{path} cannot run on {opener.device}: {missing}; pip uninstall onnxruntime, then pip "
        "install onnxruntime-gpu for the installed CUDA and cuDNN, or choose --device auto, "
        "which puts ONNX files on the CPU"
    )


def _input_of(reference: Reference, shape: list[Any], described: str | None) -> OnnxInput:
    """Return the input from the metadata or the graph's shape, changed by the options."""
    options = reference.options
    values: dict[str, Any] = {} if described is None else dict(json.loads(described))
    if len(shape) != 4:
        raise UserError(f"{reference.place} takes an input of shape {shape}, not images")
    layout = options.get("layout", values.get("layout", _layout_of(shape))).lower()
    order = options.get("order", values.get("order", "rgb")).lower()
    fit = options.get("fit", values.get("fit", DEFAULT_FIT))
    for text, choices in ((layout, _LAYOUTS), (order, _ORDERS), (fit, tuple(FITS))):
        if text not in choices:
            raise UserError(f"{reference.text}: {text!r} is not one of {', '.join(choices)}")
    channels, *sides = (shape[i] for i in ((1, 2, 3) if layout == "nchw" else (3, 1, 2)))
    channels = values.get("channels", channels if isinstance(channels, int) else 3)
    height, width = _size_of(reference, sides, values)
    numbers = {
        name: parse_numbers(options[name], name, channels)
        if name in options
        else tuple(np.broadcast_to(np.asarray(values.get(name, 0.5)), channels).tolist())
        for name in ("mean", "std")
    }
    try:
        InputSpec(height, width, channels, **numbers, fit=fit)
    except UserError as error:
        raise UserError(f"{reference.text}: {error}") from error
    return OnnxInput(height, width, channels, layout, **numbers, order=order, fit=fit)


def _size_of(reference: Reference, sides: list[Any], values: dict[str, Any]) -> tuple[int, int]:
    """Return height and width: of the options, the metadata or the graph; they must agree."""
    size = [values.get("height", sides[0]), values.get("width", sides[1])]
    if "size" in reference.options:
        size = list(parse_size(reference.options["size"]))
    fixed = [side if isinstance(side, int) else "any" for side in sides]
    fits = all(limit in ("any", side) for side, limit in zip(size, fixed, strict=True))
    if not fits or not all(isinstance(side, int) for side in size):
        is_open = fixed == ["any", "any"]
        what = "leaves its image size open" if is_open else f"takes images of {fixed[0]}x{fixed[1]}"
        raise UserError(f"{reference.place} {what}: write onnx:FILE?size=HEIGHTxWIDTH to match")
    return size[0], size[1]


def _layout_of(shape: list[Any]) -> str:
    return "nhwc" if shape[3] in (1, 3) and shape[1] not in (1, 3) else "nchw"


def _output_name(reference: Reference, session: Any) -> str:
    names = [output.name for output in session.get_outputs()]
    name = reference.options.get("output", names[0])
    if name not in names:
        raise UserError(f"{reference.text}: no output {name!r}; it has {', '.join(names)}")
    return name


def _fingerprint(path: Path, spec: OnnxInput, output: str) -> str:
    digest = hashlib.sha256(json.dumps([asdict(spec), output], sort_keys=True).encode())
    for file in (path, *_weight_files(path)):
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:32]


def _weight_files(path: Path) -> list[Path]:
    """Return the files beside an ONNX file that hold its weights."""
    try:
        import onnx
    except ImportError as error:
        raise UserError("onnx:FILE needs onnx: pip install 'unibct[onnx]'") from error
    graph = onnx.load(str(path), load_external_data=False).graph
    places = {
        entry.value
        for tensor in graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return [path.parent / place for place in sorted(places)]
