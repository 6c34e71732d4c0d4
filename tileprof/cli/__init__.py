"""The command line: `entry` parses and turns exceptions into exit codes, ``verbs`` holds one module per verb."""
