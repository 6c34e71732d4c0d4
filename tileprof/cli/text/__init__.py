"""The output of verbs: tables, sentences, progress, and the terminal that they print to."""
