"""Reports: ``reports/<topic>/<output>.py`` writes one result in one output format.

Every output is a pure function of a result. Files are written by ``write(result, stream)``, the
terminal by ``write(result, console, ...)``; ``to_json(result)`` returns plain data. ``formats`` and
``page`` hold what several reports share. A new output is one new module and one command option.
"""
