"""Facts about the kernels that PyTorch's libraries launch, measured on a GPU: ``python -m tileprof.harvest``.

The model recorder looks them up in tables (`tileprof.record.model.tables`) instead of guessing by rules. A harvest
launches real PyTorch calls over a list of shapes and keeps, per launch, name, grid, block, cluster, registers, shared
memory and duration::

    activity.py    runs calls under CUPTI and gives each its launches
    slices.py      runs a family's cases in slices that are files, so that a cut harvest continues
    graph_captures.py    what calls would launch, captured into CUDA graphs that never run; capture_workers.py runs
                         many such processes at once
    products/      a family: its calls, shapes, captures and recipes, the table and the nets
    convolutions/  a family: its calls, cases from the layers of whole lists of models, captures, trees
    operators/     a family: elementwise operators, reductions, norms and others
    attention.py   a family, with its cases
    __main__.py    the command line; a new family is a module with a FAMILY, and a line in FAMILIES

Durations are of kernels as programs run them: the operand that stands for a weight is cold in L2 (each repetition reads
another place of a large pool), the other operand and the results are warm.
"""
