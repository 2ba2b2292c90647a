"""The result of several steps and ranks as text, JSON, CSV, Markdown, JUnit and HTML."""
