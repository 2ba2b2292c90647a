"""Self-contained HTML pages: templates, scripts, styles and packed tables."""
