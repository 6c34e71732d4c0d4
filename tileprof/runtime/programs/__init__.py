"""Programs of users: which models they call with what, and how fast these could be."""
