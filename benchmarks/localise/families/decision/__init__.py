"""A decision transformer: actions of a trajectory from its returns-to-go and states."""
