"""The library: one function for each command, with the same name and options.

``import dumpdiff`` offers them all.
"""
