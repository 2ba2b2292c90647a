"""Properties of molecules by message passing: sums of neighbours, then attention to them."""
