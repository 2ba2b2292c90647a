"""A querying transformer between frozen image features and text, as BLIP-2's first stage."""
