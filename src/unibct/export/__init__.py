"""A model for other programs: the ONNX file, its check against torch, and its int8 variant.

The model card is in ``report``. Reading somebody else's ONNX file is no part of this room.
"""
