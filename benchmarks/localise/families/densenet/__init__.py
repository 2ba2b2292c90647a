"""A reader of radiographs: densely connected convolutions, findings, landmarks along the rows."""
