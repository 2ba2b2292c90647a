"""Self-supervised depth from video: depth and pose networks, warped frames, photometric error."""
