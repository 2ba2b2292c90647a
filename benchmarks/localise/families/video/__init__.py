"""A video classifier with divided attention in space and time, pooled over time by attention."""
