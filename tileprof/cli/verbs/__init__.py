"""The verbs of the command line, one module per verb; each has a `tileprof.cli.verb.Verb` named ``VERB``."""
