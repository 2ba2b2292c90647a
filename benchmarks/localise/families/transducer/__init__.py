"""A streaming speech recognizer with a transducer loss."""
