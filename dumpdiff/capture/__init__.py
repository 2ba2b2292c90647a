"""What to record next: dump configurations, environment variables, code for training scripts.

Every function takes data and returns data or text. None runs a framework or writes a file.
"""
