"""Times chains of stages on a GPU: under every scheduler, beside PyTorch, and stage by stage."""
