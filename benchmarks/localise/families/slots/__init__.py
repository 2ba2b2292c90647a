"""Objects of a video in slots: slot attention, a predictor between frames, a broadcast decoder."""
