"""One file for each family of networks, and the table of their names.

Networks know nothing of files, classes or training.
"""
