"""Labels of a catalog as a benchmark file: what stands in the text, what does not, and what became of each row."""
