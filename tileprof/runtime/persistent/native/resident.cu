// Nothing, in the shape of the persistent kernel: how many clusters of it a device holds can be asked before there is a
// plan.
extern "C" __global__ void __launch_bounds__(384, 1) resident() {}
