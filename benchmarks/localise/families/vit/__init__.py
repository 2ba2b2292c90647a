"""A vision transformer: patches, class token, learned positions, layer norm before each part."""
