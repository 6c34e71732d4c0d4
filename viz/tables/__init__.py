"""The parts of a page's document (`tileprof.viz.document`), each as a table packed for the browser."""
