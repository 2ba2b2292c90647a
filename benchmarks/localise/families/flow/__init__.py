"""A normalizing flow of images: squeezes, affine couplings, 1x1 convolutions that can be undone."""
