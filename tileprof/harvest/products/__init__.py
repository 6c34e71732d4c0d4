"""Matrix products: how they are called, captured, and turned into the table and the nets of the model recorder."""
