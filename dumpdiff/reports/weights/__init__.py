"""Reports of a comparison of two checkpoints, one module per output format."""
