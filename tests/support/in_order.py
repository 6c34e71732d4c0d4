"""Matches two lists of launches of one program in the order in which they were issued."""

import numpy as np


def matched_in_order(worth):
    """Return the pairs ``(i, j)``, both ascending, whose sum of ``worth[i, j]`` is the largest.

    ``worth[i, j]`` is what a match of row i and column j counts, at least 0. Rows and columns may stay without a match.
    """
    rows, columns = worth.shape
    best = np.zeros((rows + 1, columns + 1), np.int64)
    for i in range(rows):
        # first the best of the row above or of a match here, then the best so far of all columns
        best[i + 1, 1:] = np.maximum(best[i, 1:], best[i, :-1] + worth[i])
        np.maximum.accumulate(best[i + 1], out=best[i + 1])
    pairs = []
    i, j = rows, columns
    while i and j:
        if best[i, j] == best[i, j - 1]:
            j -= 1
        elif best[i, j] == best[i - 1, j]:
            i -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1]
