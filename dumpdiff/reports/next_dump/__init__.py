"""Reports on the dump to record next."""
