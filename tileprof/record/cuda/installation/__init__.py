"""What recording needs on this machine: found, built, and checked by a program whose accesses are known."""
