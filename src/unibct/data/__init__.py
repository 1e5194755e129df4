"""Images with classes: where they come from and how they are read."""
