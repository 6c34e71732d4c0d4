"""Whether a policy waits for every dependency of its launches, and whether its waits end."""
