"""unibct: upgrade the model of a visual search without embedding the gallery again."""
