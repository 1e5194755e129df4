"""Train networks of other libraries in each of several processes, see ``forked_ranks``."""

import sys

from tests.torchvision_operators import declare_torchvision_operators
from tests.training.test_other_networks import train_each

declare_torchvision_operators()

import timm  # noqa: E402, F401
import transformers  # noqa: E402, F401

if __name__ == "__main__":
    train_each(*sys.argv[1:])
