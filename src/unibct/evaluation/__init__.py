"""How good a search is, and whether the new model may replace the old one.

Metrics, thresholds, intervals and verdicts on arrays. Tables and pictures do not live here.
"""
