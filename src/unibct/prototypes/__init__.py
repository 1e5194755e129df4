"""One vector per class in the old space, from arrays or from stores larger than memory.

The trained classifier's rows are class weights, not prototypes: they live in ``training``.
"""
