"""Damaged and hostile inputs of every reader: each ends with a DumpError or a result."""
