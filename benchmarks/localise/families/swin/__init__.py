"""A hierarchical image classifier with attention in windows, with mixup and drop path."""
