"""A semantic segmenter: separable convolutions, attention, dilated pyramid, decoder, Dice loss."""
