"""Plan an upgrade before paying for it: scenario, methods, the old model's strength, costs.

Nothing here trains a model to keep or writes a file that stays.
"""
