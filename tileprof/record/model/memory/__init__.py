"""The buffers that tensors lie in, and the addresses that a CUDA allocator would give them."""
