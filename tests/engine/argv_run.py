"""Runs in the engine's Python: reads lists of arguments (JSON, one a line), prints what vLLM makes of each, and what it says of options.

A line is the speculative config that vLLM would be configured with, or null, or "refused". The last line says of each option in this
script's own arguments whether `vllm serve` takes at least one value for it: one process, because loading vLLM takes most of the time.
"""

import contextlib
import dataclasses
import io
import json
import sys

import vllm.platforms  # noqa: F401 - finds the device, without which the parser of options is not made
from vllm.engine import arg_utils
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

OUT_OF_THE_FLAGS = ("target_model_config", "target_parallel_config")


def main() -> None:
    options = make_arg_parser(FlexibleArgumentParser())._option_string_actions
    parser = arg_utils.EngineArgs.add_cli_args(FlexibleArgumentParser())
    arg_utils.SpeculativeConfig = dict  # stop where the flags have become one config, before any model is looked at
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--port")
    fields = {field.name for field in dataclasses.fields(arg_utils.EngineArgs)}
    for line in sys.stdin:
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                space = parser.parse_args(json.loads(line))
                given = {name: value for name, value in vars(space).items() if name.startswith("spec") and name in fields}
                # Without __post_init__, which would look for the model.
                engine_args = object.__new__(arg_utils.EngineArgs)
                vars(engine_args).update(given)
                config = engine_args.create_speculative_config(None, None)
        except (SystemExit, ValueError, TypeError, AttributeError, IndexError):
            print(json.dumps("refused"))
            continue
        print(json.dumps(config and {name: value for name, value in config.items() if name not in OUT_OF_THE_FLAGS}))
    print(json.dumps({name: name in options and options[name].nargs in {None, "+"} for name in sys.argv[1:]}))


if __name__ == "__main__":
    main()
