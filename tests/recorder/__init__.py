"""The recorder writes what happened, and changes nothing."""
