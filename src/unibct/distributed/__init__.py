"""The processes of one run: who they are, their device, and what they exchange.

Losses and training call what lives here; nothing here knows an image, a model folder or a method.
"""
