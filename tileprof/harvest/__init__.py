"""Facts about the kernels that PyTorch's libraries launch, measured on a GPU: ``python -m tileprof.harvest``.

The model recorder looks them up in tables (`tileprof.record.model.tables`) instead of guessing by rules. A harvest
launches real PyTorch calls over a list of shapes and keeps, per launch, name, grid, block, cluster, registers, shared
memory and duration::

    activity.py    runs calls under CUPTI and gives each its launches
    slices.py      runs a family's cases in slices that are files, so that a cut harvest continues
    products.py    a family: matrix products; product_cases.py lists its shapes
    graph_captures.py     what calls would launch, captured into CUDA graphs that never run
    product_captures.py, convolution_captures.py   so many products and convolutions
    product_recipes.py    what launches of a product say; kernel_names.py reads names
    product_ranker.py     trains nets on captures; product_table.py makes the table of products
    convolutions.py   a family; convolution_cases.py draws its cases from layers of whole lists of models
    attention.py   a family, with its cases
    __main__.py    the command line; a new family is a module with a FAMILY, and a line in FAMILIES

Durations are of kernels as programs run them: the operand that stands for a weight is cold in L2 (each repetition reads
another place of a large pool), the other operand and the results are warm.
"""
