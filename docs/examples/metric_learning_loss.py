"""A loss of pytorch-metric-learning as L_cls, and the paper's structural prototypes as L_comp."""

import numpy as np
import torch
from pytorch_metric_learning.losses import ArcFaceLoss
from torch import nn
from torch.nn.functional import normalize

import unibct

torch.manual_seed(0)
rng = np.random.default_rng(0)
labels = torch.arange(1500) % 150  # 150 classes of 10 images; the last 50 classes are the test
signal = (rng.normal(size=(150, 8)) @ rng.normal(size=(8, 64)))[labels]
features = torch.from_numpy(signal + 3 * rng.normal(size=signal.shape)).float()
training = torch.nonzero(labels < 100)[:, 0]
old = normalize(features[:, :12])  # an old model that sees a part of each image only
new_model = nn.Linear(64, 12)

classify = ArcFaceLoss(num_classes=100, embedding_size=12, margin=15.0, scale=16.0)
stay_compatible = unibct.CompatibilityLoss(
    "unibct", old=old[training], labels=labels[training], scale=16.0, margin=0.2
)
optimizer = torch.optim.Adam([*new_model.parameters(), *classify.parameters()], lr=0.01)
for step in range(200):
    if step % 100 == 0:  # which images are central for the new model now?
        with torch.no_grad():
            stay_compatible.refresh(normalize(new_model(features[training])))
    batch = torch.randint(len(training), (64,))  # rows of the training set
    embeddings = new_model(features[training][batch])
    batch_labels = labels[training][batch]
    loss = classify(embeddings, batch_labels) + stay_compatible(embeddings, batch_labels, batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with torch.no_grad():
    new = normalize(new_model(features))
test = labels >= 100
result = unibct.evaluate(labels[test] - 100, old=old[test], new=new[test])
print({c.metric: round(c.difference, 3) for c in result.criteria}, result.verdict)
