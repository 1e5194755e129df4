"""One file or folder for each way to test two models, and the table that lists them.

A protocol reads its data and makes its tests. The metrics themselves live one floor below.
"""
