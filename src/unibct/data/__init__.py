"""Images with their classes: how they are found, decoded, changed, loaded in batches and split.

No model and no embedding lives here; what DATA may be on the command line is in ``readers``.
"""
