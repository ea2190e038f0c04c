"""Runs in the engine's Python: says of each option in its arguments whether `vllm serve` takes at least one value for it."""

import json
import sys

import vllm.platforms  # noqa: F401 - finds the device, without which the parser is not made
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

known = make_arg_parser(FlexibleArgumentParser())._option_string_actions
print(json.dumps({name: name in known and known[name].nargs in {None, "+"} for name in sys.argv[1:]}))
