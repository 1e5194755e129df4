"""`python:MODULE:ATTRIBUTE`: a network of the user's own, an ``nn.Module`` or what makes one.

ATTRIBUTE is a module, a class of modules, or a function that returns one. It says which images it
takes in an attribute ``unibct_input``, a dictionary with the words of the settings: ``size``
(a number, or height and width), ``channels``, ``fit``, ``mean``, ``deviation``. ``unibct_dim`` may
say its own dimension. A class or function is called with those of the arguments ``height``,
``width``, ``channels`` and ``dim`` that it names. The output is one vector for each image, or
tokens or a map, of which the mean is taken.
"""

import copy
import inspect
import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from torch import Tensor, nn

from unibct.distributed.device import callers_generators_kept
from unibct.errors import UserError, first_line
from unibct.models.architectures import Architecture, NetworkRequest, starting_from
from unibct.models.architectures.resnet import (
    embedding_network,
    feature_count,
    load_backbone,
    pooled,
)
from unibct.models.input import InputSpec
from unibct.registry import find_attribute

_INPUT, _DIM = "unibct_input", "unibct_dim"
_WORDS = {"size", "channels", "fit", "mean", "deviation"}


def open_architecture(reference: str, request: NetworkRequest) -> Architecture:
    """Import the module, and read the attribute's description of its input."""
    config = {"reference": reference, "pooling": request.pooling}
    own_input = _own_input(reference, _attribute(reference))
    architecture = stored_architecture(config, own_input)
    architecture = replace(architecture, dim=_own_dim(reference, own_input))
    return starting_from(request.weights, load_backbone, architecture)


def stored_architecture(config: Mapping[str, Any], own_input: InputSpec) -> Architecture:
    """Return the architecture that a model folder describes."""
    reference = str(config["reference"])
    name = f"python:{reference}"
    pool = _first_token if config["pooling"] == "cls" else _pooled

    def build(spec: InputSpec, dim: int) -> nn.Module:
        return embedding_network(name, _network(reference, spec, dim), pool, spec, dim)

    return Architecture(build, own_input, 0, name=name, config=config)


def _attribute(reference: str) -> Any:
    """Import what the reference names, and require that it says which images it takes."""
    value = find_attribute(reference)
    # This also keeps a model folder from calling a function that was never meant as a network.
    if not hasattr(value, _INPUT):
        raise UserError(
            f"python:{reference} does not say which images it takes: give it an attribute "
            f'{_INPUT} = {{"size": 112, "channels": 3, "mean": 0.5, "deviation": 0.5}}'
        )
    return value


def _own_input(reference: str, value: Any) -> InputSpec:
    stated: Any = getattr(value, _INPUT)
    if not isinstance(stated, dict) or not set(cast(dict[str, Any], stated)) <= _WORDS:
        raise UserError(
            f"python:{reference}: {_INPUT} must be a dictionary with {', '.join(sorted(_WORDS))}"
        )
    words = cast(dict[str, Any], stated)
    size = words.get("size", 112)
    try:
        height, width = (size, size) if isinstance(size, int) else size
        mean, deviation = words.get("mean", 0.5), words.get("deviation", 0.5)
        channels, fit = words.get("channels", 3), words.get("fit", "stretch")
        return InputSpec(height, width, channels, mean, deviation, fit)
    except UserError as error:
        raise UserError(f"python:{reference}: {_INPUT}: {error}") from error
    except (TypeError, ValueError) as error:
        raise UserError(
            f"python:{reference}: {_INPUT} = {words} makes no sense: {error}"
        ) from error


def _own_dim(reference: str, own_input: InputSpec) -> int:
    """Return the stated dimension, or that of the network's output."""
    stated = getattr(_attribute(reference), _DIM, None)
    if stated is not None:
        try:
            return operator.index(stated)
        except TypeError as error:
            raise UserError(
                f"python:{reference}: {_DIM} must be a whole number, not {stated!r}"
            ) from error
    with callers_generators_kept():
        network = _network(reference, own_input, None)
    return feature_count(f"python:{reference}", network, _pooled, own_input)


def _network(reference: str, spec: InputSpec, dim: int | None) -> nn.Module:
    value = _attribute(reference)
    if isinstance(value, nn.Module):
        return copy.deepcopy(value)
    offered = {"height": spec.height, "width": spec.width, "channels": spec.channels, "dim": dim}
    parameters = inspect.signature(value).parameters
    if dim is None and "dim" in parameters:
        if parameters["dim"].default is inspect.Parameter.empty:
            raise UserError(f"python:{reference} takes dim: say its usual one in {_DIM}")
        del offered["dim"]
    arguments = {name: v for name, v in offered.items() if name in parameters}
    try:
        network: Any = value(**arguments)
    except UserError:
        raise
    except Exception as error:  # whatever the user's own code raises
        raise UserError(
            f"python:{reference} cannot be built from its arguments "
            f"{', '.join(arguments) or 'none'} ({type(error).__name__}: {first_line(error)}); "
            f"it may name {', '.join(offered)}"
        ) from error
    if not isinstance(network, nn.Module):
        raise UserError(f"python:{reference} returns {type(network).__name__}, not an nn.Module")
    if isinstance(value, type):
        return network
    try:  # a function may return the same network each time
        return copy.deepcopy(network)
    except RuntimeError:  # a tensor that was computed from others, as by `weight_norm`
        return network


def _pooled(network: nn.Module, x: Tensor) -> Tensor:
    output = network(x)
    return pooled(output) if isinstance(output, Tensor) else output


def _first_token(network: nn.Module, x: Tensor) -> Tensor:
    output: Tensor = network(x)
    if output.ndim != 3:
        raise UserError("pooling = cls: this network has no tokens; use pooling=mean or auto")
    return output[:, 0]
