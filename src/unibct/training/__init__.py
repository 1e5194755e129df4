"""Training a model: the recipe, the plan of a run, its state, one step, the loop, checkpoints.

Losses and compatibility methods live in ``losses`` and ``methods``, and the choice of training
images in ``data``.
"""
