"""The IJB-B and IJB-C protocols: meta files, aligned faces, templates, pairs and searches.

What other protocols need as well does not live here but in ``evaluation``.
"""
