"""Where rows are kept and searched: one file for each database, listed in ``table``.

An engine knows rows, kinds and marks. Which model may search what is decided outside.
"""
