"""Record PyTorch programs."""
