"""How long chains of stages take on a GPU: under every scheduler, beside PyTorch, and stage by stage."""
