"""A recurrent language model with linear attention, RWKV-5."""
