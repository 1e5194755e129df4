"""Rows that several models made: adding, searching, upgrading, backfilling and going back.

``engines`` keeps and searches the rows. How models are trained and tested is not here: a
certificate brings the result of a test.
"""
