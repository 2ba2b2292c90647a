"""A detector by set prediction, with a transformer and learned object queries, as DETR."""
