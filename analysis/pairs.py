def pair_frame(graph): return None
