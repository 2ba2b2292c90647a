"""Disparities of two images of a pair, by a volume of costs and a loss with and without labels."""
