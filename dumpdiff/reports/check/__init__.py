"""The check of a run without a reference, in a terminal, as JSON, JUnit and Markdown."""
