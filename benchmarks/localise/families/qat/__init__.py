"""A classifier trained with fake quantization of weights and activations."""
