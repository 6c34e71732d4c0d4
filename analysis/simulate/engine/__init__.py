"""The discrete-event engine: what schedulers decide as a plan, and the compiled loop that runs it."""
