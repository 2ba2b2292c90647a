"""A hybrid of gated delta rule and attention, as Qwen3-Next, that also predicts a token more."""
