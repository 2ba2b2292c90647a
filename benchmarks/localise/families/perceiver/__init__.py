"""Latents that read an array, work on it with relative positions, and answer queries."""
