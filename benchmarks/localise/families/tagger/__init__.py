"""A sequence tagger: characters, words, a highway layer, a bidirectional GRU and a CRF."""
