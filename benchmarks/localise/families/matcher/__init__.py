"""Matches of two images' key points by attention within and between them, and Sinkhorn."""
