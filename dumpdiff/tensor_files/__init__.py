"""Files that hold tensors: NumPy's .npy and torch's .pt, read without a framework or unpickling.

Dumps and checkpoints are made of them.
"""
