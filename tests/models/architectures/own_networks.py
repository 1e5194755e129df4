"""Networks as a user writes them, for `python:tests.models.architectures.own_networks:…`."""

import copy

import torch
from torch import nn


class Described(nn.Module):
    """A class with its input beside it; it is built for the size and the dimension."""

    unibct_input = {"size": (24, 16), "channels": 1, "fit": "crop", "mean": 0.4}  # noqa: RUF012
    unibct_dim = 6

    def __init__(self, height, width, dim):
        super().__init__()
        self.flat = nn.Flatten()
        self.fc = nn.Linear(height * width, dim)

    def forward(self, x):
        return self.fc(self.flat(x))


def convolutions(channels):
    """A function whose network gives a map of 5 channels."""
    first = nn.Conv2d(channels, 5, 3, 2, 1)
    return nn.Sequential(first, nn.BatchNorm2d(5), nn.ReLU(), nn.Dropout(0.2))


convolutions.unibct_input = {"size": 20, "mean": (0.1, 0.2, 0.3), "deviation": 0.25}

whole = nn.Sequential(nn.Flatten(1, 2), nn.Linear(8, 4))  # (batch, 24, 8) -> (batch, 24, 4)
whole.unibct_input = {"size": 8}

learnt = nn.Linear(64, 32)


def shaken():
    """A learnt layer with a little noise on all of its weights, another one with each seed."""
    network = nn.Sequential(nn.Flatten(), copy.deepcopy(learnt))
    with torch.no_grad():
        for weights in network.parameters():
            weights.add_(0.01 * torch.randn_like(weights))
    return network


shaken.unibct_input = {"size": 8, "channels": 1}

undescribed = nn.Linear(3, 4)


def wrong():
    return 3


wrong.unibct_input = {"size": 8}


def demanding(dim):
    return nn.Linear(3, dim)


demanding.unibct_input = {"size": 8}


class Oversized(nn.Module):
    unibct_input = {"mean": 127.5}  # noqa: RUF012


class Sizeless(nn.Module):
    unibct_input = {"size": "big"}  # noqa: RUF012


class Misspelt(nn.Module):
    unibct_input = {"sizes": 8}  # noqa: RUF012


def products(height, width, channels):
    """A network of matrix products only."""
    flat = nn.Linear(height * width * channels, 32)
    return nn.Sequential(nn.Flatten(), flat, nn.ReLU(), nn.Linear(32, 8))


products.unibct_input = {"size": 16, "channels": 1}

_shared = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))


def shared():
    """A function that returns the same network each time."""
    return _shared


shared.unibct_input = {"size": 4, "channels": 1}


def weight_normed():
    """A function whose network cannot be copied."""
    return nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(16, 4)))


weight_normed.unibct_input = {"size": 4, "channels": 1}


class Deep(nn.Module):
    unibct_input = {"size": 8}  # noqa: RUF012

    def __init__(self, depth):
        super().__init__()


def broken():
    raise RuntimeError("no weights on disk")


broken.unibct_input = {"size": 8}


class Dimensionless(nn.Module):
    unibct_input = {"size": 8}  # noqa: RUF012
    unibct_dim = "big"
