"""Reports of a dump that was held against a golden reference."""
