"""The HTML and Markdown reports, a module for each.

Their tables, curves and pictures come from ``report``, and the templates from ``templates``.
"""
