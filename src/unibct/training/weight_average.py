"""A moving average of the weights, which often embeds better than the last weights do."""

import copy

from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class WeightAverage:
    """The exponential moving average of a network's and the classes' weights.

    Attributes:
        network: a network with the averaged weights and running means, in evaluation mode.
        class_weights: (own classes, dim) averaged.
    """

    def __init__(self, network: nn.Module, class_weights: Tensor, decay: float) -> None:
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        self.class_weights = class_weights.detach().clone()
        self._decay = decay

    def update(self, network: nn.Module, class_weights: Tensor, updates: int) -> None:
        """Move the averages towards the weights after an update.

        Args:
            network: the network in training.
            class_weights: (own classes, dim).
            updates: how many updates there have been. The first weights are random, so the
                decay is smaller at first.
        """
        decay = min(self._decay, (1 + updates) / (10 + updates))
        averages, currents = [self.class_weights], [class_weights.detach()]
        places: set[int] = set()  # a weight that two layers share moves once
        for average, current in zip(
            self.network.state_dict().values(), network.state_dict().values(), strict=True
        ):
            if not average.is_floating_point():  # a count of batches
                average.copy_(current)
            elif average.data_ptr() not in places:
                places.add(average.data_ptr())
                averages.append(average)
                currents.append(current)
        get_ema_multi_avg_fn(decay)(averages, currents, updates)
