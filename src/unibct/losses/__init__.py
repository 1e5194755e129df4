"""The losses: pure functions of embeddings, one idea per file.

The methods decide which loss they use and when.
"""
