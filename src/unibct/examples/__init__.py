"""Whole runs on images that come with the package: the demo, and a rehearsal of the paper's runs.

Nothing here is needed for a run on a user's own images.
"""
