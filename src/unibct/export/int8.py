"""The int8 variant of an exported file, made by ONNX Runtime's quantisation.

A network of convolutions gets fixed ranges for its activations, measured on calibration images. A
network of matrix products (a transformer) finds them for each batch, because a few very large
activations would spoil a fixed range.
"""

import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unibct.data.decoding import Pixels
from unibct.data.image_set import ImageSet
from unibct.data.loader import read_pixels
from unibct.embeddings.extraction import embed
from unibct.errors import UserError, first_line
from unibct.evaluation.criterion import Criterion, compare_tests
from unibct.evaluation.search_test import search_test
from unibct.evaluation.templates import GallerySplit, split_gallery
from unibct.evaluation.verification import headline_far
from unibct.export.graph import INPUT_NAME, Exportable, ExportedModel, silenced_libraries
from unibct.models.embedder import Embedder

_PRODUCTS = ("Gemm", "MatMul")
_CALIBRATION_BATCH = 16


class _Batches:
    """What the library asks for calibration images."""

    def __init__(self, pixels: Pixels) -> None:
        self._pixels, self._next = pixels, 0

    def get_next(self) -> dict[str, Pixels] | None:
        """Return the next batch; None at the end."""
        batch = self._pixels[self._next : self._next + _CALIBRATION_BATCH]
        self._next += _CALIBRATION_BATCH
        return {INPUT_NAME: np.ascontiguousarray(batch)} if len(batch) else None


def write_int8(source: Path, path: Path, calibration: Pixels) -> str:
    """Write the int8 variant of an exported file.

    The ranges of activations are measured on (images, height, width, channels). Returns ``static``
    if they are fixed, ``dynamic`` if they are found for each batch.
    """
    onnx, quantization = import_module("onnx"), import_module("onnxruntime.quantization")
    graph = onnx.load(str(source))
    operators = [node.op_type for node in graph.graph.node]
    is_static = operators.count("Conv") > operators.count("MatMul")
    # Seven bits for weights: with eight, processors without VNNI overflow their sums.
    common: dict[str, Any] = {
        "per_channel": True,
        "reduce_range": True,
        "weight_type": quantization.QuantType.QInt8,
    }
    prepared = path.with_name(f"{path.name}.prepared")
    try:
        with silenced_libraries():
            _prepare(graph, prepared)
            if is_static:
                quantization.quantize_static(
                    str(prepared),
                    str(path),
                    _Batches(calibration),
                    op_types_to_quantize=["Conv", *_PRODUCTS],
                    quant_format=quantization.QuantFormat.QDQ,
                    activation_type=quantization.QuantType.QUInt8,
                    **common,
                )
            else:
                quantization.quantize_dynamic(
                    str(prepared), str(path), op_types_to_quantize=list(_PRODUCTS), **common
                )
    except Exception as error:  # the library raises many kinds of errors
        reason = first_line(error)
        raise UserError(f"the network cannot be made int8: {reason}") from error
    finally:
        prepared.unlink(missing_ok=True)
    return "static" if is_static else "dynamic"


def _prepare(graph: Any, path: Path) -> None:
    """Write a graph as the library wants it: optimised, and with shapes that it has found itself.

    The shapes that the exporter noted are those before its own optimisation.
    """
    del graph.graph.value_info[:]
    import_module("onnx").save(graph, str(path))
    pre_process = import_module("onnxruntime.quantization.shape_inference").quant_pre_process
    pre_process(str(path), str(path), skip_symbolic_shape=True)


@dataclass(frozen=True)
class Int8Loss:
    """A search with int8 queries, against the same search with exact queries."""

    gallery: str  # whose rows were searched: ``old``, or ``exact``, the exported file's own
    differences: tuple[Criterion, ...]  # of each metric, int8 minus exact, with its interval
    lowest_cosine: float  # between an int8 and an exact embedding
    mean_cosine: float
    speed: float  # images per second, int8 over exact, measured one after the other
    queries: int

    def as_json(self) -> dict[str, Any]:
        """Return plain values for machines."""
        return {
            "gallery": self.gallery,
            "queries": self.queries,
            "lowest_cosine": self.lowest_cosine,
            "mean_cosine": self.mean_cosine,
            "speed": self.speed,
            "metrics": [
                {
                    "metric": criterion.metric,
                    "exact": criterion.old_self,
                    "int8": criterion.cross,
                    "difference": criterion.difference,
                    "interval": [criterion.low, criterion.high],
                }
                for criterion in self.differences
            ],
        }


def calibration_split(images: ImageSet, seed: int = 0) -> GallerySplit:
    """Return which images are queries; the others, a quarter of each class, calibrate int8."""
    if len(images.class_names) < 2:
        raise UserError(f"{images.name} has one class only; a search test needs at least two")
    return split_gallery(images.labels, seed=seed)


def measure_int8_loss(
    files: tuple[ExportedModel, ExportedModel],
    model: Exportable,
    images: ImageSet,
    *,
    old: Embedder | None = None,
    seed: int = 0,
) -> Int8Loss:
    """Search a gallery with the queries of the exact file and of the int8 one, of the same images.

    The gallery is the ``old`` model's: the cross test. By default it is the exact file's own. The
    seed chooses the gallery's images and the bootstrap samples.
    """
    split = calibration_split(images, seed)
    pixels = read_pixels(images, model.input.frame)
    order = np.arange(len(images))
    vectors: list[NDArray[np.float32]] = []
    seconds = [0.0, 0.0]
    for number, file in enumerate(files):
        parts: list[NDArray[np.float32]] = []
        for batch in pixels.batches(order, 64):
            begin = time.perf_counter()
            parts.append(file.embed_pixels(batch))
            seconds[number] += time.perf_counter() - begin
        vectors.append(np.concatenate(parts))
    exact, int8 = vectors
    gallery = exact if old is None else embed(old, images).vectors
    if gallery.shape[1] != exact.shape[1]:
        raise UserError(
            f"the old model has dimension {gallery.shape[1]}, the exported one {exact.shape[1]}: "
            "one cannot search the other; a model with a projection into the old space can, as "
            "'MODEL?space=old'"
        )
    tests = [search_test(queries, gallery, split) for queries in (exact, int8)]
    far = headline_far(split.compared_classes)
    cosines = (exact.astype(np.float64) * int8).sum(axis=1)
    return Int8Loss(
        gallery="exact" if old is None else "old",
        differences=compare_tests(tests[0], tests[1], far=far, seed=seed),
        lowest_cosine=float(cosines.min()),
        mean_cosine=float(cosines.mean()),
        speed=seconds[0] / seconds[1],
        queries=len(split.query),
    )
