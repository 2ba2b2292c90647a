"""What msprobe is given: its configuration, the lines of a training script, mappings for ``msprobe compare``."""
