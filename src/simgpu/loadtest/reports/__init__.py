"""Reports of runs: files for machines, a page for people, and comparisons."""
