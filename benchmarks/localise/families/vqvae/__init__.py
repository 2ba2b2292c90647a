"""A vector-quantised autoencoder of images: convolutions, group norms, attention, a codebook."""
