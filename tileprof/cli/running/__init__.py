"""What `tileprof run` does with a policy, a program or an exported header: one module per way to run."""
