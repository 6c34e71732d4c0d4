"""Tools that a machine may lack."""

from tileprof.errors import UserError


def path_or_none(look):
    try:
        return look()
    except UserError:
        return None
