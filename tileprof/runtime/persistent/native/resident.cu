// An empty kernel with the shape of the persistent kernel, for a query how many of its clusters a device holds before
// there is a plan.
extern "C" __global__ void __launch_bounds__(384, 1) resident() {}
