"""Which tile depends on which, byte for byte, and the shape of the dependencies between two launches."""
