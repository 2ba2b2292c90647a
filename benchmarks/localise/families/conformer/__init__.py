"""A speech encoder: convolutions and attention with relative positions, trained with CTC."""
