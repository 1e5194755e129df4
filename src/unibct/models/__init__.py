"""Networks that turn images into embeddings, and models on disk."""
