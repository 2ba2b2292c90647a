"""A single-stage object detector with a feature pyramid, focal loss and GIoU loss."""
