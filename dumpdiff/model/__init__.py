"""Data that all packages share: traces, results, findings, dtypes, errors, formatted numbers."""
