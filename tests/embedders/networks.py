"""Small ONNX files and Python embedders with a known outcome."""

import json
from typing import ClassVar

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

INPUT_SIZE = (2, 3, 3)  # of the Python embedders


def matrix(rows, dim, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)


def write_onnx(path, shape, weights, *, dtype=TensorProto.FLOAT, metadata=None):
    """Write a file that flattens its input and multiplies it by a matrix."""
    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["numbers"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["embedding"]),
        helper.make_node("Identity", ["numbers"], ["copy"]),
        helper.make_node("ReduceMean", ["flat"], ["score"], axes=[1], keepdims=0),
    ]
    images = helper.make_tensor_value_info("images", dtype, shape)
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in ("embedding", "copy", "score")
    ]
    initial = [numpy_helper.from_array(weights, "weights")]
    graph = helper.make_graph(nodes, "test", [images], outputs, initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if metadata is not None:
        helper.set_model_props(model, {"unibct.input": json.dumps(metadata)})
    onnx.save(model, path)
    return path


def flatten(images):
    """A function from images to vectors."""
    assert images.dtype == np.uint8
    return images.reshape(len(images), -1).astype(np.float64) + 1


class Flattening:
    """A class that makes an embedder, with everything stated."""

    unibct_input: ClassVar = {"size": (2, 3), "channels": 3}
    dim = 18
    fingerprint = "stated by the object"

    def embed(self, images):
        return flatten(images).tolist()


def make_flattening():
    return Flattening()


class WithoutInput:
    """A class whose images are given by options."""

    fingerprint = "stated by the object"

    def embed(self, images):
        return flatten(images)


class OnlySize(WithoutInput):
    unibct_input: ClassVar = {"size": (2, 3)}
    fingerprint = "size only"


class MethodAsFingerprint(Flattening):
    def fingerprint(self):
        return "never called"


class InTorch:
    """A class that changes its images in place, in torch."""

    unibct_input: ClassVar = {"size": (2, 3)}

    def embed(self, images):
        return torch.from_numpy(images).add_(1).flatten(1).float()


class Wrong(Flattening):
    dim = 5


def shapeless(images):
    return [1, 2, 3]
