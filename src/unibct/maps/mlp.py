"""`mlp`: a network with one hidden layer, trained to the least squared distance."""

import torch
import torch.nn.functional as F
from torch import nn

from unibct.distributed.generators import callers_generators_kept, seed_generators
from unibct.maps.vector_map import Layers, Pairs

_HIDDEN = 4  # hidden units per input dimension
_EPOCHS = 30
_STEPS = 2000  # the least number of steps, for few images
_BATCH = 256
_RATE = 1e-3


def fit_mlp(pairs: Pairs, seed: int) -> Layers:
    """Train two layers with Adam, see ``FitFunction``. The global random state stays as it is."""
    x, v, weights = F.normalize(pairs.new, dim=1), F.normalize(pairs.old, dim=1), pairs.weights
    hidden = _HIDDEN * x.shape[1]
    with callers_generators_kept():
        seed_generators(seed)
        layers = [nn.Linear(x.shape[1], hidden), nn.Linear(hidden, v.shape[1])]
    network = nn.Sequential(layers[0], nn.ReLU(), layers[1]).to(x.device)
    optimizer = torch.optim.Adam(network.parameters(), lr=_RATE)
    generator = torch.Generator().manual_seed(seed)
    steps = -(-len(x) // _BATCH)
    epochs = max(_EPOCHS, -(-_STEPS // steps))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=generator).to(x.device)
        for start in range(0, len(x), _BATCH):
            rows = order[start : start + _BATCH]
            gap = F.normalize(network(x[rows]), dim=1) - v[rows]
            loss = (len(x) * weights[rows] * gap.square().sum(dim=1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return tuple((layer.weight.detach(), layer.bias.detach()) for layer in layers)
