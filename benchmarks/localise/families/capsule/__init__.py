"""A capsule network for images: routing by agreement, and an image from the label's capsule."""
