"""The int8 variant of an exported file, made by ONNX Runtime's quantisation.

A network of convolutions gets fixed ranges for its activations, measured on calibration images. A
network of matrix products (a transformer) finds them for each batch, because a few very large
activations would spoil a fixed range.
"""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from unibct.data.decoding import Pixels
from unibct.errors import UserError, first_line
from unibct.export.graph import INPUT_NAME

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

    Args:
        source: the exported file.
        path: the file to write.
        calibration: (images, height, width, channels) to measure the ranges of activations on.

    Returns:
        ``static`` if the ranges are fixed, ``dynamic`` if they are found for each batch.
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
        with _silent():
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


@contextmanager
def _silent() -> Generator[None]:
    """Keep the library's advice off the terminal."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(previous)
