"""The images that a network takes: their size, channels and normalisation."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unibct.data.decoding import Pixels

RESIZE = "stretch, bilinear"  # how images are fitted; part of what determines the output


@dataclass(frozen=True)
class InputSpec:
    """The input of a network: size, channels, and (x/255 − mean)/std of the pixels."""

    height: int
    width: int
    channels: int
    mean: float = 0.5
    std: float = 0.5

    @property
    def size(self) -> tuple[int, int, int]:
        """The height, width and channels."""
        return self.height, self.width, self.channels


def to_input(pixels: Pixels, spec: InputSpec, device: torch.device) -> Tensor:
    """Normalise a batch for the network and move it to the device.

    Args:
        pixels: (batch, height, width, channels) uint8.
        spec: the network's input.
        device: where the network is.

    Returns:
        (batch, channels, height, width) float32.
    """
    return normalised(torch.from_numpy(np.ascontiguousarray(pixels)).to(device), spec)


def normalised(pixels: Tensor, spec: InputSpec) -> Tensor:
    """Normalise a batch that is on the device already.

    Args:
        pixels: (batch, height, width, channels) uint8.
        spec: the network's input.

    Returns:
        (batch, channels, height, width) float32.
    """
    return pixels.permute(0, 3, 1, 2).float().div_(255).sub_(spec.mean).div_(spec.std)
