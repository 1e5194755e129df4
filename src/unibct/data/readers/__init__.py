"""One reader for each layout that images may have on disk, and the table that lists the readers.

A reader returns an image set. Decoding, batches and splits are in ``unibct.data``.
"""
