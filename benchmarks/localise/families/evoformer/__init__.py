"""Two blocks of protein structure prediction: an alignment and pairs of residues."""
