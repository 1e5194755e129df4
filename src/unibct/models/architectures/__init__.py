"""The networks: a file for each family, and the table of their names.

Networks know nothing about files, classes or training.
"""
