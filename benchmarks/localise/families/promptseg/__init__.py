"""Promptable segmentation: an image encoder, prompts of three kinds, a two-way mask decoder."""
