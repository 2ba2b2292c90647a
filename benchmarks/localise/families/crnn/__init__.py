"""A text-line recognizer: convolutions, bidirectional LSTM, CTC, attention, length of the text."""
