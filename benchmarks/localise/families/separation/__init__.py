"""Separation of two speakers in one channel, as Conv-TasNet with SepFormer's attention."""
