"""An image classifier of bottlenecks with grouped convolutions and a pooled shortcut."""
