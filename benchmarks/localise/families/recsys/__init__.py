"""Recommendation: low-rank cross network, attention over a history, two towers."""
