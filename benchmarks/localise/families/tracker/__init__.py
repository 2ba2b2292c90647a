"""A siamese tracker: a template correlated with a search region, level by level."""
