"""A solver of routing problems: attention, and a pointer to the next customer."""
