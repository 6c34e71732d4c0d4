"""Figures outside of the page: for notebooks, and for a line of text in a terminal."""
