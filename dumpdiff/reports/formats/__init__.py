"""What several reports share: JSON, CSV, Markdown, JUnit, and titled blocks of text."""
