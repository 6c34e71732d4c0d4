"""What verbs print: tables, sentences, progress, and the terminal that they print to."""
