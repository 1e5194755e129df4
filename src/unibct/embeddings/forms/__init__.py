"""The forms in which embeddings are kept on disk: a file for each, and their table.

Each form reads and writes vectors with ids, and labels if there are any. What a form's rows must
be like to be used is checked elsewhere, in ``embeddings/checking.py``.
"""
