"""Global weather forecasts: windows on the globe, spectra of its latitudes, two steps in time."""
