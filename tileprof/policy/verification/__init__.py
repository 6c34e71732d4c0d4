"""Checks that a policy waits for every dependency of its launches, and that its waits end."""
