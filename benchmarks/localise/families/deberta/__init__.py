"""A masked language model: attention with disentangled relative positions, two losses."""
