"""A mixture of experts in one launch, whose tasks exist only once its tokens are routed."""
