"""Reports of a comparison of two dumps, one module per output; each is a pure function of a result."""
