"""How a joined triage is said: the conclusion first, then each stage in the words of its own report.

``sections`` turns what each stage found into tables and lists; ``text``, ``html`` and ``markdown`` show them,
``junit`` makes a test case of each stage, ``json`` holds everything.
"""
