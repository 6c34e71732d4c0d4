"""Runs the verb simulate in this process."""

from argparse import ArgumentParser

from tileprof.cli.entry import add_options
from tileprof.cli.verbs.simulate import VERB


def simulate(*arguments):
    parser = ArgumentParser()
    add_options(VERB, parser)
    return VERB.run(parser.parse_args(list(map(str, arguments))))
