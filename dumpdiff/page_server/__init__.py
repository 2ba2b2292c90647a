"""The pages of a saved result over HTTP, with tensors that are read when a page asks for them.

``application`` answers requests, ``pair_views`` reads the tensors, ``server`` listens on this
machine.
"""
