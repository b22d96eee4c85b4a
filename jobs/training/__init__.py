"""What may be learned: benchmark files, Parquet with attribute columns, the output of `hpd extract`."""
