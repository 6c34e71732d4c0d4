"""Programs under ``torch.compile``: the launches that Inductor would make of them on the described GPU.

`target` lets PyTorch see that GPU, `lowering` runs Inductor for it, `wrapper` runs the code that comes out on fake
tensors, `kernels` and `evaluation` say which bytes each program of a Triton kernel touches, `backend` is what Dynamo
calls. No kernel is compiled or run.
"""
