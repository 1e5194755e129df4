"""Maps from a finished model's embeddings into another model's space: fit, apply, save.

They work on arrays. The model that carries a map lives in ``models``.
"""
