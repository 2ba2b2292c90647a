"""An image classifier of depthwise convolutions: patches, inverted bottlenecks, layer scale."""
