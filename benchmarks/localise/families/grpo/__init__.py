"""A language model that learns from verifiable rewards: groups of samples, ratios and values."""
