"""A classifier and segmenter of point clouds: edge convolutions, grouping and interpolation."""
