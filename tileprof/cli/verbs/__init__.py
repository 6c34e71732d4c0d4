"""The verbs of the command line, one module per verb with a `tileprof.cli.verb.Verb` named ``VERB``.

Modules named ``<verb>_…`` hold parts of a verb: watching by `report`, fleets and child grids in `simulate`.
"""
