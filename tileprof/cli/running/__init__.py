"""The ways of `tileprof run`: a policy, a program or an exported header, one module per way."""
