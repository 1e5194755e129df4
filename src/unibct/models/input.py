"""The images that a network takes: their size, channels, fit and normalisation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unibct.data.decoding import DEFAULT_FIT, FITS, VECTORS, Frame, Pixels
from unibct.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_INTERPOLATION = "bilinear"

PerChannel = float | tuple[float, ...]


@dataclass(frozen=True)
class InputSpec:
    """The input of a network: size, channels, and (x/255 − mean)/std of the pixels."""

    height: int  # rows
    width: int  # columns
    channels: int  # 1 for grey, 3 for colour
    # Of the pixels from 0 to 1: one number for all channels, or one for each.
    mean: PerChannel = 0.5
    std: PerChannel = 0.5  # their standard deviation: one number for all channels, or one for each
    # A name from ``FITS``: how an image of another shape is fitted. ``VECTORS`` for a network that
    # takes finished vectors: width is then their dimension.
    fit: str = DEFAULT_FIT

    def __post_init__(self) -> None:
        """Refuse what no image can have, and write equal channels as one number."""
        if min(self.height, self.width) < 1 or self.channels not in (1, 3):
            raise UserError(
                f"images cannot have {self.height}×{self.width} pixels and {self.channels} "
                "channels; sizes are at least 1, and channels are 1 (grey) or 3 (colour)"
            )
        if self.fit not in (*FITS, VECTORS):
            raise UserError(f"unknown fit {self.fit!r}; choose one of {', '.join(FITS)}")
        for name in ("mean", "std"):
            object.__setattr__(self, name, self._per_channel(name, getattr(self, name)))

    def _per_channel(self, name: str, values: float | Sequence[float]) -> PerChannel:
        word = "deviation" if name == "std" else name
        numbers = (values,) if isinstance(values, (int, float)) else tuple(values)
        if len(numbers) not in (1, self.channels):
            raise UserError(
                f"{word} has {len(numbers)} numbers for images with {self.channels} channels; "
                "give one number, or one for each channel"
            )
        lowest = 0.0 if name == "mean" else math.ulp(0.0)
        if not all(lowest <= number <= 1 for number in numbers):
            raise UserError(
                f"{word} = {list(numbers)} does not fit pixels from 0 to 1; "
                "divide by 255 if it counts from 0 to 255"
            )
        floats = tuple(float(number) for number in numbers)
        return floats[0] if len(set(floats)) == 1 else floats

    @property
    def frame(self) -> Frame:
        """The form that images are brought into before they are normalised."""
        return Frame(self.height, self.width, self.channels, self.fit)

    @property
    def resize(self) -> str:
        """How images are fitted, in words; part of what determines the output."""
        return f"{self.fit}, {_INTERPOLATION}"

    @property
    def normalisation(self) -> dict[str, Any]:
        """Everything but the fit, as plain values."""
        return {name: value for name, value in asdict(self).items() if name != "fit"}

    def description(self) -> dict[str, Any]:
        """Return plain values for a file, from which ``of_description`` makes the input again."""
        return self.normalisation | {"resize": self.resize}

    @classmethod
    def of_description(cls, description: Mapping[str, Any]) -> "InputSpec":
        """Return the input that ``description`` has described."""
        values = dict(description)
        fit, _, interpolation = values.pop("resize", cls.fit).partition(", ")
        if interpolation not in ("", _INTERPOLATION):
            raise UserError(f"images cannot be resized by {interpolation}, only {_INTERPOLATION}")
        return cls(**values, fit=fit)


def to_input(pixels: Pixels, spec: InputSpec, device: "torch.device") -> "Tensor":
    """Normalise a batch for the network and move it to the device.

    (batch, height, width, channels) uint8 -> (batch, channels, height, width) float32; finished
    vectors are float32 from the start.
    """
    import torch  # here, so that the table of architectures is readable without torch

    array = np.ascontiguousarray(pixels)
    dtype = np.dtype(np.float32 if spec.fit == VECTORS else np.uint8)
    if array.dtype != dtype or array.shape[1:] != spec.frame.shape:
        shape = ", ".join(str(size) for size in spec.frame.shape)
        raise UserError(
            f"pixels must be {dtype} of shape (batch, {shape}), not {array.dtype} of shape "
            f"{array.shape}; embed takes images of any size"
        )
    return normalised(torch.from_numpy(array).to(device), spec)


def normalised(pixels: "Tensor", spec: InputSpec) -> "Tensor":
    """Normalise a batch that is on the device already, as ``to_input``."""
    if pixels.is_floating_point():
        return pixels.permute(0, 3, 1, 2)  # finished vectors
    values = pixels.permute(0, 3, 1, 2).float().div_(255)
    if isinstance(spec.mean, float) and isinstance(spec.std, float):
        return values.sub_(spec.mean).div_(spec.std)
    # Plain numbers for each channel: a tensor of them would make the device wait for the host.
    for channel in range(spec.channels):
        mean, std = channel_number(spec.mean, channel), channel_number(spec.std, channel)
        values[:, channel].sub_(mean).div_(std)
    return values


def channel_number(values: PerChannel, channel: int) -> float:
    """Return the number of one channel."""
    return values[channel] if isinstance(values, tuple) else values
