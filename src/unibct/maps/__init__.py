"""Maps from a finished model's embeddings into another model's space: fit, apply, save.

``table`` lists them and each has a file. They work on arrays; the model that carries a map is in
``models``.
"""
