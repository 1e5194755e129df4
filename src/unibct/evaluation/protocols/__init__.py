"""One file or folder for each way to test two models, and the table that lists them.

A protocol reads its data and runs its tests. The metrics live in ``evaluation.metrics``.
"""
