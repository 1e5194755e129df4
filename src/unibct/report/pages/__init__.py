"""The HTML and Markdown reports, one file for each.

Tables, curves and pictures come from ``report``; the page templates lie in ``templates``.
"""
