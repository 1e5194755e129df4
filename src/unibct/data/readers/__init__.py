"""One file for each layout in which images are kept on disk, and the table that lists them.

Readers give an image set. Decoding, batches and splits do not live here.
"""
