"""The IJB-B and IJB-C protocols: meta files, aligned faces, pooled templates, tests."""
