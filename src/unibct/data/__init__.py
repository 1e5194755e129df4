"""Images and their classes: image sets, decoding, augmentation, batches, splits, conversion.

``readers`` has a module for each layout that images may have on disk. Models and embeddings have
their own packages.
"""
