"""A neural audio codec with residual vector quantisation, in the manner of EnCodec and DAC."""
