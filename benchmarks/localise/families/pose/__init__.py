"""Pose estimation by two parallel resolutions, heatmaps and expected coordinates, as HRNet."""
