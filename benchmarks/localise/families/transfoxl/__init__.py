"""A language model that remembers the segment before, with relative positions."""
