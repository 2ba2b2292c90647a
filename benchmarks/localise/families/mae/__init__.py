"""A masked autoencoder of images."""
