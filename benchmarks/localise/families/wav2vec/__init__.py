"""A small speech encoder that learns from waveforms: masked frames, quantized targets."""
