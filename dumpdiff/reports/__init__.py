"""Results out: one module per output, and each is a pure function of :class:`dumpdiff.result.Result`.

Every module has ``write(result, where, ...)``; adding an output is one new file and one option of the command.
"""
