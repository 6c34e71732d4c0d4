"""What single instructions compute, on words and predicates of all threads at once."""
