"""A learned world model for planning, unrolled from a replay buffer."""
