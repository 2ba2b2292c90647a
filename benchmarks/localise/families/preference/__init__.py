"""A decoder with low-rank adapters, trained on pairs of a chosen and a rejected answer (DPO)."""
