"""A speech synthesizer that predicts all frames at once: durations, pitch, energy, postnet."""
