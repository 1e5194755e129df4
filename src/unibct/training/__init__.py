"""Training a model: its recipe, the plan of a run, its state, one step, the loop, checkpoints.

Formulas do not live here, and neither does the choice of training images.
"""
