"""What turns images into embeddings: the model, its input, its folder on disk, its fingerprint.

The networks are in ``architectures``. Training and stored embeddings are in other rooms.
"""
