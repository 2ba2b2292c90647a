"""Pretraining of a bidirectional encoder: masked tokens and the order of two segments."""
