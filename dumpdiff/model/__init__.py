"""What every package speaks: traces, results, findings, dtypes, errors, and how numbers are formatted."""
