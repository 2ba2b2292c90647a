"""A parametric body model, regressed from images of persons."""
