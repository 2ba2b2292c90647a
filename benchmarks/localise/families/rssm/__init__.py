"""A recurrent state-space model: the world model of Dreamer."""
