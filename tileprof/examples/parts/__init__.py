"""Parts that several examples share: none of these modules is a program."""
