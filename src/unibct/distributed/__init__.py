"""The processes of one run: which ranks there are, their devices, and what they exchange.

Losses, methods and training build on this room. Nothing here knows about images, model folders or
methods.
"""
