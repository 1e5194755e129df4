"""The losses: pure functions of embeddings, labels and class weights, one idea per file.

Which loss a method uses, when and with which weight does not live here but in ``methods``.
"""
