"""The reports as files: HTML for the benchmark and the demo, and Markdown for the benchmark.

Their tables, curves and pictures do not live here but in ``report``, their HTML in
``report/templates``.
"""
