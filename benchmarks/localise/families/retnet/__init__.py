"""A language model of retention."""
