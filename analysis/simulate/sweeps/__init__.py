"""Many simulations: curves over an option or a size, shared among processes of this machine or of a Dask cluster."""
