"""A neural radiance field with a coarse and a fine network, rendered along rays."""
