"""The road from a loss that differs to the reason: settings, checklists, logs; one package or module per stage.

Each stage is a function from files to a frozen result, which knows how to be a :class:`~dumpdiff.triage.stage.Stage`:
what is joined into one decision. Reports print the results, commands call the functions.
"""
