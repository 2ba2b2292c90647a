"""A soft actor-critic for continuous actions that sees stacked images."""
