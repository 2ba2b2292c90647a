"""An image restoration: channel attention, gated convolutions, two levels, three losses."""
