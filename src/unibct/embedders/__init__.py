"""What can stand in place of a model: a model folder, an ONNX file, a callable, stored embeddings.

``table`` lists the kinds and each has a file. The protocol that they follow is in ``models``; the
forms of stored embeddings are in ``embeddings/forms``.
"""
