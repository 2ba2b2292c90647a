"""A language model of LSTM layers: fused in PyTorch, unrolled in MindSpore."""
