"""The benchmark's models in PyTorch, as its users write them; every knob of ``architecture`` is
obeyed.

A clean model holds no trace of a knob: no multiplication by one, no branch op.
"""
