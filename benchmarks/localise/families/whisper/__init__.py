"""A small speech recognizer: convolutions over mel frames, encoder, decoder with a tied head."""
