"""A training loop of your own: one more loss keeps the old gallery searchable."""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import normalize

import unibct
from unibct.losses import arcface

torch.manual_seed(0)
rng = np.random.default_rng(0)
# Stand-ins for your images: 150 classes of 10; the last 50 classes are the test.
y = torch.arange(1500) % 150
signal = (rng.normal(size=(150, 8)) @ rng.normal(size=(8, 64)))[y]
x = torch.from_numpy(signal + 3 * rng.normal(size=signal.shape)).float()
training = torch.nonzero(y < 100)[:, 0]
# The old model's embeddings of all images. This one sees a part of each image only.
old = normalize(x[:, :12])

model = nn.Linear(64, 12)  # any network that returns one vector for each image
class_weights = nn.Parameter(torch.randn(100, 12))
compatible = unibct.CompatibilityLoss(
    "unibct-plus", old=old[training], labels=y[training], scale=16.0, margin=0.2
)
optimizer = torch.optim.AdamW([*model.parameters(), class_weights], lr=0.01)
for _ in range(300):
    rows = torch.randint(len(training), (64,))  # of the set that the loss was made with
    embeddings, labels = model(x[training][rows]), y[training][rows]
    classified = compatible.classified(embeddings)  # from the centre of the old embeddings
    loss = arcface(classified, class_weights, labels, scale=16.0, margin=0.2)
    loss = loss + compatible(embeddings, labels, rows, class_weights)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with torch.no_grad():
    new = normalize(model(x))
test = y >= 100
result = unibct.evaluate(y[test] - 100, old=old[test], new=new[test])
for criterion in result.criteria:
    print(f"{criterion.metric}: {100 * criterion.difference:+.1f} points over the old model")
print(result.verdict)
