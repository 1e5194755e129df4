"""Whole runs on images that ship with the package: the demo, and the rehearsal of the paper's.

Nothing that a user's own run needs lives here.
"""
