"""The losses, each a pure function of embeddings, one idea in a file.

Which loss a method uses, and when, is not decided here.
"""
