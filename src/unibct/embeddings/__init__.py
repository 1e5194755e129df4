"""Vectors with ids and labels: rows in memory or on disk, and how a model makes them.

What is computed from embeddings (prototypes, metrics) does not live here.
"""
