"""Predictions against gold: benchmark files, the metric, intervals, tables, kinds of errors, pages."""
