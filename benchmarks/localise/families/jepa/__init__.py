"""A joint-embedding predictive model of images."""
