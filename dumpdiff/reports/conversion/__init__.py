"""Reports of a conversion of a checkpoint, one module per output format."""
