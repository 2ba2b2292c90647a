"""Reports of a triage: the conclusion first, then each stage as its own command reports it.

``sections`` returns each stage as tables and lists. ``text``, ``html`` and ``markdown`` show them,
``junit`` makes a test case of each stage, ``json`` holds everything.
"""
