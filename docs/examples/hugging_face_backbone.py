"""A vision model of Hugging Face in your own loop: its first token is the embedding."""

import numpy as np
import torch
from torch import nn
from transformers import ViTConfig, ViTModel

import unibct
from unibct.losses import arcface

torch.manual_seed(0)
images = unibct.open_images("glyphs:val")
rows = np.flatnonzero(images.labels < 12)
pixels = np.stack([images.read(images.ids[row]) for row in rows])
x = torch.from_numpy(pixels)[:, None].float().repeat(1, 3, 1, 1) / 127.5 - 1
y = torch.from_numpy(images.labels[rows])

# In your project: ViTModel.from_pretrained("FOLDER"). Random weights need no download.
config = ViTConfig(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    image_size=32, patch_size=8,
)  # fmt: skip
backbone, head = ViTModel(config, add_pooling_layer=False), nn.Linear(32, 16)
class_weights = nn.Parameter(torch.randn(12, 16))
old = torch.randn(12, 16)[y] + 0.5 * torch.randn(len(y), 16)  # your old model's vectors
compatible = unibct.CompatibilityLoss("unibct-plus", old=old, labels=y, scale=16.0, margin=0.2)
parameters = [*backbone.parameters(), *head.parameters(), class_weights]
optimizer = torch.optim.AdamW(parameters, lr=1e-3)
losses = []
for _ in range(30):
    batch = torch.randint(len(x), (32,))
    embeddings = head(backbone(pixel_values=x[batch]).last_hidden_state[:, 0])
    loss = arcface(embeddings, class_weights, y[batch], scale=16.0, margin=0.2)
    loss = loss + compatible(embeddings, y[batch], batch, class_weights)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(float(loss.detach()))
print(f"loss {losses[0]:.1f} at first, {losses[-1]:.1f} at the end")
