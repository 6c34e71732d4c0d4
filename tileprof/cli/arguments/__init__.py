"""Arguments that several verbs share: how they are read, checked and refused."""
