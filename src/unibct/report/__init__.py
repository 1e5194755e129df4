"""Reports that a person looks at: tables, curves and pictures in one HTML file."""
