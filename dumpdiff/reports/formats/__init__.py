"""Text formats that several reports write: Markdown and JUnit, with all text escaped."""
