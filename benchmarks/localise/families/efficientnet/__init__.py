"""An image classifier of inverted bottlenecks with squeeze-and-excitation, as TensorFlow has it."""
