"""The demo: a whole run on images that come with the package, which no other run needs."""
