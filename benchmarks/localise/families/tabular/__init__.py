"""A network for tables: tokens of features, attention, and sparse masks of features."""
