"""Reports of a comparison of two dumps, one module per output format."""
