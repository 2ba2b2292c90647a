"""Ranking of items: embeddings of fields, a cross network, a factorization machine."""
