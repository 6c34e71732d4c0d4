"""One launch for a whole chain of products or convolutions on sm_90: weights stream ahead, activations wait on the
semaphores of the policy.
"""
