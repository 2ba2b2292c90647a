"""Image super-resolution: channel and large-kernel attention, pixel shuffle, three losses."""
