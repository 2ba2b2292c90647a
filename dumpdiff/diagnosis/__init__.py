"""Triage: from the comparisons of two runs to where their mismatch comes from, and what to do next.

Each comparison is one :class:`~dumpdiff.model.stage.Stage` (the dumps are two). Their verdicts are
joined by place (:mod:`.places`), the places are searched in the order of the precision guide
(:mod:`.decision`), and each conclusion has its advice (:mod:`.advice`).
"""
