"""A forecaster of time series: patches, static covariates, quantiles."""
