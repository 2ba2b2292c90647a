"""Quantiles from static, known and observed inputs, as the Temporal Fusion Transformer."""
