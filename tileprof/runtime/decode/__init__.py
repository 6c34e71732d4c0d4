"""One token of each of up to eight sequences through a whole decoder, in one launch."""
