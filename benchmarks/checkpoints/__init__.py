"""Checkpoints of model families: correct pairs, deliberate mistakes, and conversions."""
