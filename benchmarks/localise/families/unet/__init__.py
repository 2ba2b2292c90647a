"""A diffusion U-Net: convolutions, group norms, attention, time embedding, skip connections."""
