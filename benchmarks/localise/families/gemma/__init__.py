"""A small decoder: sliding windows in turn with whole attention, four norms a layer, soft caps."""
