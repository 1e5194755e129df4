"""The demo: a whole run on images that come with the package.

Nothing here is needed for a run on a user's own images.
"""
