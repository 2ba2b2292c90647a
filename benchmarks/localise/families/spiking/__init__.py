"""A spiking transformer for images: neurons that leak, fire and reset, over a few time steps."""
