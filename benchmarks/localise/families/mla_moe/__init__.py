"""A decoder with latent attention and a mixture of experts, as DeepSeek-V3."""
