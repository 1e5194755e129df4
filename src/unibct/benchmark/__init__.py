"""The benchmark: every method in every scenario over several seeds, and upgrade chains."""
