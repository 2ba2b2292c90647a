"""A variational autoencoder of waveforms by dilated causal convolutions."""
