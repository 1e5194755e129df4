"""The compatibility methods: ``table`` lists them, ``base`` says what a method is, each has a file.

The formulas are in ``losses`` and ``prototypes``. The training loop calls a method through its base
class and knows none of them by name.
"""
