"""Translation by gated recurrent units and additive attention."""
