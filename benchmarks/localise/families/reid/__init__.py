"""A re-identification net: instance-batch norms, GeM pooling, a BN neck and three losses."""
