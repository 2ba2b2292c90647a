"""Images and texts in one space: a convolutional and a transformer tower, contrastive loss."""
