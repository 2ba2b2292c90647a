"""An image-to-image network trained against a patch discriminator, as pix2pixHD."""
