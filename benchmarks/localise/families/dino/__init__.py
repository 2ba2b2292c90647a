"""Self-distillation of a vision transformer over crops of images, as DINO and DINOv2."""
