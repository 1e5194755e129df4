"""One file for each kind of metric, as pure functions of scores, and the table of all metrics.

Adding a metric is one function and one line in ``table``. Intervals and verdicts do not live here.
"""
