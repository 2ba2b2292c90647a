"""Reports on a single dump."""
