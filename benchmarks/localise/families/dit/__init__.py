"""A diffusion transformer: modulated blocks, attention to caption tokens, weighted v-prediction."""
