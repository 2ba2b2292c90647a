"""A decoder that reads images: a vision transformer, merged patches, positions of three axes."""
