"""A two-stage detector: anchors of a pyramid, then boxes of proposals by RoI align."""
