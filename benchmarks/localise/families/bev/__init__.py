"""A bird's-eye view from several cameras: images lifted by their depths, pooled, and detected."""
