"""A state-space model, as Mamba."""
