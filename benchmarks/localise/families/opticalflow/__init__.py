"""Optical flow between two images by recurrent lookups in all pairs of their features, as RAFT."""
