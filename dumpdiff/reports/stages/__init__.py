"""Reports of the stages of a triage other than dumps and weights, one module per stage.

In each, ``write`` prints it, ``to_json`` returns it as plain data, and ``build_blocks`` returns the
tables and lists that the terminal, the page and Markdown show.
"""
