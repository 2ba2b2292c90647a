"""What to record next, and how: configurations of the dumpers, their environment, code for training scripts.

Everything here is data in, text or data out. Nothing runs a framework, and nothing is written to disk.
"""
