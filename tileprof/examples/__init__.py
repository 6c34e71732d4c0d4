"""Programs to record: ``tileprof record -- python -m tileprof.examples.NAME``. Each runs plain, too.

None of them knows that it is recorded: ``tileprof.capture()`` around the forward pass does nothing in a plain
run, and keeps the initialisation of the weights out of a trace.
"""
