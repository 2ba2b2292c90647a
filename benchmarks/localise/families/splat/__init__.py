"""A scene of Gaussians: splatted onto images, sorted and composited, with losses of images."""
