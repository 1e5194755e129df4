"""What turns images into embeddings: the model, its folder on disk, its fingerprint.

Training does not live here, and neither do stored embeddings.
"""
