"""Shell scripts that start vLLM: what they say about speculation, and another setting in them, held against a real bash.

The engine is a program called `vllm` that prints its arguments; the shell is the one on this machine.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st

from tabletune.argv import ArgvError, fold_speculative_config, with_speculative_config
from tabletune_operator.command import CommandError, expand, read_command, with_written

OLD = {"method": "eagle3", "model": "org/drafter", "num_speculative_tokens": 3}
NEW = {"method": "n'g\"ram", "model": "$HOME `x` \\ y", "num_speculative_tokens_per_batch_size": [[1, 8, 3], [9, 32, 0]]}
OLD_JSON = json.dumps(OLD, separators=(",", ":"))


def shell(script: str, *items: str, env: Mapping[str, str] | None = None, command: Sequence[str] = ("/bin/bash", "-c")) -> dict[str, Any]:
    entries = [{"name": name, "value": value} for name, value in (env or {}).items()]
    return {"name": "modelserver", "image": "i", "command": list(command), "args": [script, *items], "env": entries}


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `vllm` that prints its arguments, each ended by a NUL."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "vllm"
    program.write_text("#!/bin/sh\nprintf 'ENGINE\\0'; printf '%s\\0' \"$@\"; printf 'END\\0'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def started(engine: Path, container: Mapping[str, Any], argv: Sequence[str] | None = None) -> list[list[str]]:
    """The arguments of each engine that the container starts, run by the real shell as the kubelet would have it run."""
    argv = argv if argv is not None else expand([*container["command"], *container.get("args", [])], container)
    variables = {e["name"]: expand([e.get("value", "")], {})[0] for e in container.get("env") or ()}
    done = subprocess.run(
        argv,
        env={"PATH": f"{engine}:{os.environ['PATH']}", **variables},
        cwd=engine,
        capture_output=True,
        check=False,
        timeout=60,
    )
    return [start.partition("\0END\0")[0].split("\0") for start in done.stdout.decode().split("ENGINE\0")[1:]]


KSERVE = """\
if [ "$INFER" = "true" ]; then
  hcas=$(IFS=,; echo "${active[*]}")
  export NCCL_IB_HCA=${NCCL_IB_HCA:-${hcas}}
fi
# --speculative-config is for VLLM_ADDITIONAL_ARGS
ACCESS_LOG_ARGS="--disable-uvicorn-access-log"
VLLM_VERSION=$(echo 0.24.0 | tail -1 | awk '{print $NF}')
echo "version='${VLLM_VERSION}'"
if [[ "$VLLM_VERSION" =~ ^[0-9]+\\.[0-9]+ ]] && [ "$(printf '%s\\n%s\\n' "0.16.0" "${VLLM_VERSION}" | sort -V | head -1)" = "0.16.0" ]; then
  ACCESS_LOG_ARGS="--disable-access-log-for-endpoints /health,/metrics"
fi
eval "exec vllm serve /mnt/models \\
  --served-model-name "qwen" "publishers/ns/models/qwen" \\
  --port 8001 \\
  ${ACCESS_LOG_ARGS} \\
   \\
  ${VLLM_ADDITIONAL_ARGS} \\
  $@"
"""
WIDE = """\
set -euo pipefail
START_RANK=$(( 1 * 2 ))
source /dev/null; true
exec vllm serve \\
  org/model \\
  --port 8200 \\
  --tensor-parallel-size $TP_SIZE \\
  --data-parallel-size-local $((1 + 1)) \\
  --data-parallel-address ${LWS_LEADER_ADDRESS:-here} \\
  --kv_transfer_config '{"kv_connector":"NixlConnector",
                        "kv_role":"kv_both"}' \\
  --enforce-eager"""


def case(name: str, container: Mapping[str, Any], *, speculation: Mapping[str, Any] | None = OLD) -> Any:
    return pytest.param(container, speculation, id=name)


CASES = [
    case("one line", shell(f"exec vllm serve m --speculative-config '{OLD_JSON}'")),
    case("without the flag", shell("vllm serve m --port 8 # not --speculative-config {}"), speculation=None),
    case("a flag on a line of its own", shell(f"exec vllm serve m \\\n  --speculative-config \\\n  '{OLD_JSON}' \\\n  --port 8\n")),
    case("the last line", shell(f"vllm serve m \\\n  --port 8 \\\n  --speculative-config='{OLD_JSON}'\n")),
    case("in double quotes", shell(f"vllm serve m --speculative-config {json.dumps(OLD_JSON)} --port 8")),
    case("underscores and an abbreviation", shell(f"vllm serve m --speculative_conf='{OLD_JSON}' --x")),
    case("dotted and short ones", shell("vllm serve m -sc.method eagle3 --x -sc.model=org/drafter -sc.num_speculative_tokens 3")),
    case("three flags of its own", shell("vllm serve m --spec-method eagle3 --spec-tokens=3 --x --spec-model 'org/drafter'")),
    case("the last one wins", shell(f"vllm serve m --speculative-config '{{}}' --x --speculative-config '{OLD_JSON}'")),
    case(
        "dotted over JSON",
        shell(f"vllm serve m --speculative-config '{OLD_JSON}' --speculative-config.method ngram"),
        speculation={"method": "ngram"},
    ),
    case("a literal variable", shell(f"SPEC='{OLD_JSON}'\nvllm serve m --speculative-config \"$SPEC\" --x")),
    case("a literal variable before &&", shell(f"export A=1 SPEC='{OLD_JSON}' && cd / && vllm serve m -sc \"$SPEC\"")),
    case("one of two values", shell(f"X=--a\nif true; then X='--b c'; fi\nvllm serve m $X -sc '{OLD_JSON}' --x")),
    case("a variable of the container", shell('vllm serve m --speculative-config "${SPEC}" --x', env={"SPEC": OLD_JSON})),
    case("a variable with other flags", shell("vllm serve m $MORE --y", env={"MORE": f"--a 1 --speculative-config={OLD_JSON} --x"})),
    case("a variable with nothing else", shell("vllm serve m $MORE --y", env={"MORE": f"--speculative-config={OLD_JSON}"})),
    case("comments", shell(f"# vllm serve --speculative-config '{{}}'\nvllm serve m --speculative-config '{OLD_JSON}' # vllm serve\n")),
    case("carriage returns", shell(f"echo a\r\nvllm serve m --port 8 --speculative-config '{OLD_JSON}'\r\n")),
    case("wrappers", shell(f"cd / && A=1 exec env B=2 nohup vllm serve m --speculative-config '{OLD_JSON}' 2>&1 | cat")),
    case("in a branch", shell(f"if [ -d /tmp ]; then\n  vllm serve m --speculative-config '{OLD_JSON}'\nfi")),
    case("in the background", shell(f"vllm serve m --speculative-config '{OLD_JSON}' --x >&1 2> /dev/null &\nwait $!")),
    case("here-document for a shell", shell(f"bash <<'EOF'\nvllm serve m --speculative-config '{OLD_JSON}' --x\nEOF\n")),
    case("a shell in a shell", shell(f"exec bash -c {shlex.quote(f'vllm serve m --speculative-config {shlex.quote(OLD_JSON)} --x')}")),
    case("a shell in double quotes", shell('bash -c "vllm serve \'m\' --x \\"a b\\""'), speculation=None),
    case("its own arguments", shell('vllm serve m "$@" --x', "--", "--a", "b c", "--speculative-config", OLD_JSON)),
    case("its own arguments, no flag", shell('vllm serve m "$@"', "name", "--a", "b c"), speculation=None),
    case(
        "eval, a variable", shell(KSERVE, "--", "--x", "'a b'", env={"VLLM_ADDITIONAL_ARGS": f"--max 3 --speculative-config '{OLD_JSON}'"})
    ),
    case("eval, its arguments", shell(KSERVE, "--", "--speculative-config", f"'{OLD_JSON}'", "--x")),
    case("eval, nothing", shell(KSERVE, "--"), speculation=None),
    case("eval, quoted", shell(f"eval exec vllm serve m --speculative-config {shlex.quote(shlex.quote(OLD_JSON))} '--x y'")),
    case("a sh", shell(f"exec vllm serve m --speculative-config '{OLD_JSON}'", command=["sh", "-ec"])),
    case("login shell with options", shell(f"exec vllm serve m -sc '{OLD_JSON}'", command=["/bin/bash", "-euo", "pipefail", "-c"])),
    case(
        "the kubelet's dollars",
        shell(f"A=$$(echo 1)\nvllm serve m --speculative-config '{OLD_JSON}' --host \"$$A\" --port $(NAME)", env={"NAME": "8"}),
    ),
    case("wide EP", shell(WIDE.replace("source /dev/null; true\n", ""), env={"TP_SIZE": "2", "LWS_LEADER_ADDRESS": "a"}), speculation=None),
]


def engines_words(argv: Sequence[str]) -> list[str]:
    return [word.rstrip("\r") for word in fold_speculative_config(argv).args]


@pytest.mark.parametrize(("container", "speculation"), CASES)
def test_reads_what_the_engine_gets(engine: Path, container: dict[str, Any], speculation: dict[str, Any] | None) -> None:
    (argv,) = started(engine, container)
    command = read_command(container)
    assert command.speculation == speculation == fold_speculative_config(argv).config


@pytest.mark.parametrize("config", [NEW, None], ids=["another", "none"])
@pytest.mark.parametrize(("container", "speculation"), CASES)
def test_writes_one_flag_and_leaves_the_rest(
    engine: Path, container: dict[str, Any], speculation: dict[str, Any] | None, config: dict[str, Any] | None
) -> None:
    (before,) = started(engine, container)
    changed = with_written(container, read_command(container).write(config))
    (argv,) = started(engine, changed)
    assert fold_speculative_config(argv).config == config
    assert sum("speculative" in word for word in argv) == (config is not None) + ("num_speculative" in str(argv) and config is not None)
    assert engines_words(argv) == engines_words(before)
    # And back: what is written over it says what was there.
    again = with_written(changed, read_command(changed).write(speculation))
    (restored,) = started(engine, again)
    assert fold_speculative_config(restored).config == speculation
    assert engines_words(restored) == engines_words(before)


@pytest.mark.parametrize("config", [NEW, None], ids=["another", "none"])
@pytest.mark.parametrize(("container", "speculation"), CASES)
def test_the_profiling_pod_runs_the_same_script(
    engine: Path, container: dict[str, Any], speculation: dict[str, Any] | None, config: dict[str, Any] | None
) -> None:
    (before,) = started(engine, container)
    flag = [] if config is None else ["--speculative-config", json.dumps(config)]
    (argv,) = started(engine, container, [*read_command(container).run, *flag])
    assert fold_speculative_config(argv).config == config
    assert engines_words(argv) == engines_words(before)


def refusal(name: str, script: str, *words: str, reason: str = "TargetShellString", env: Mapping[str, str] | None = None) -> Any:
    return pytest.param(shell(script, env=env), reason, words, id=name)


@pytest.mark.parametrize(
    ("container", "reason", "words"),
    [
        refusal("two engines", "vllm serve a &\nvllm serve b", "in 2 places"),
        refusal("two engines in branches", "if true; then vllm serve a; else vllm serve b; fi", "in 2 places"),
        refusal("for loop", "for m in a b; do vllm serve $m & done", "a for loop"),
        refusal("function", "run() { vllm serve m; }\nrun", "a function"),
        refusal("command substitution", "echo $(vllm serve m)", "a command substitution"),
        refusal("flag in a command substitution", "vllm serve m $(echo --speculative-config '{}')", "may hold --speculative-config"),
        refusal("flags from a file", 'vllm serve m "$(cat flags)"', "may hold --speculative-config"),
        refusal("unknown variable", "vllm serve m $EXTRA_ARGS", "$EXTRA_ARGS may hold --speculative-config"),
        refusal("unknown variable in quotes", 'vllm serve m "$EXTRA_ARGS"', "may hold --speculative-config"),
        refusal("computed variable", 'X=$(date)\nvllm serve m --port 8 $X', "$X may hold"),
        refusal("maybe assigned", "if a; then X=--spec-method=ngram; fi\nvllm serve m $X", "$X may hold", env={"X": ""}),
        refusal("appended to", "X=a\nX+=' --spec-tokens 3'\nvllm serve m $X", "$X may hold"),
        refusal("read from elsewhere", ". ./env.sh\nvllm serve m $X", "$X may hold", env={"X": "--port 8"}),
        refusal("a list of words", "A=(--spec-method ngram)\nvllm serve m \"${A[@]}\"", "may hold"),
        refusal("arguments after shift", 'shift\nvllm serve m "$@"', "may hold"),
        refusal("value of the flag", 'vllm serve m --speculative-config "$SPEC"', "the value of", reason="ArgumentFromEnvironment"),
        refusal("part of its value", 'vllm serve m --speculative-config.method "$SPEC"', "a part of", reason="ArgumentFromEnvironment"),
        refusal("command in a variable", "CMD='vllm serve m'\n$CMD --x", "in a text of the script"),
        refusal("command in a list", "CMD=(vllm serve m)\n\"${CMD[@]}\"", "no command of the script"),
        refusal("written to a file and run", "cat > x <<EOF\nvllm serve m\nEOF\nbash x", "in a text of the script"),
        refusal("here-document that is expanded", "bash <<EOF\nvllm serve m $X\nEOF", "quote its delimiter"),
        refusal("for a remote shell", "ssh host 'vllm serve m'", "may run it"),
        refusal("eval of something unknown", "eval \"$SETUP\"\nvllm serve m", "not in the pod template"),
        refusal("eval with something unknown", 'eval "vllm serve m $EXTRA"', "not in the pod template"),
        refusal("continued lines that end in CR LF", "vllm serve m \\\r\n  --port 8\r\n", "CR LF"),
        refusal("a word that the grammar passes over", "vllm serve m - 2>&1", "passes over -"),
        refusal("another separator", "IFS=,\nvllm serve m $X", "$X may hold", env={"X": "--port,8"}),
        refusal("env for a shell", "env X=--spec-tokens=3 bash -c 'vllm serve m $X'", "env sets variables", env={"X": ""}),
        refusal("glued to something harmless", "D=-\nif a; then D=x; fi\nvllm serve m $D'sc={}'", "may hold"),
        refusal("perhaps the image's", "if a; then X=--port=8; fi\nvllm serve m $X", "$X may hold"),
        refusal("words behind a redirection", "vllm serve m >&1 --x", "put that at the end"),
        refusal("a word in two lines", "vllm serve m --por\\\nt 8", "in the next line"),
        refusal("braces", "vllm serve m --speculative-config={\"method\":1,\"x\":2}", "may hold"),
        refusal("glued to dashes", "vllm serve m --$X", "may hold", env={}),
        refusal("no shell script", "vllm serve m 'x", "shell grammar"),
        refusal("two that differ", "vllm serve m --spec-method a -sc '{\"method\":\"b\"}'", "keep one", reason="ArgumentNotUnderstood"),
        refusal("broken JSON", "vllm serve m --speculative-config '{'", "is not JSON", reason="ArgumentNotUnderstood"),
    ],
)  # fmt: skip
def test_refuses_what_is_not_certain(container: dict[str, Any], reason: str, words: Sequence[str]) -> None:
    with pytest.raises(CommandError) as refused:
        read_command(container)
    assert refused.value.reason == reason
    assert all(word in refused.value.message for word in words), refused.value.message
    assert len(refused.value.message) < 240


def test_a_variable_in_the_place_of_an_options_value_is_that_value(engine: Path) -> None:
    container = shell("vllm serve $MODEL --port $PORT --host=$HOST --tensor-parallel-size $TP -dp $((1+1)) --enforce-eager")
    command = read_command(container)
    assert command.argv == (
        "vllm", "serve", "$MODEL", "--port", "$PORT", "--host=$HOST", "--tensor-parallel-size", "$TP", "-dp", "$((1+1))", "--enforce-eager",
    )  # fmt: skip
    with pytest.raises(CommandError):
        read_command(shell("vllm serve m --enforce-eager $PORT"))


def test_zsh_does_not_split_variables() -> None:
    with pytest.raises(CommandError, match="zsh"):
        read_command(shell("vllm serve m", command=["zsh", "-c"]))


def test_other_flags_of_a_split_variable_stay_in_it() -> None:
    container = shell("vllm serve m $MORE --y", env={"MORE": "--a 1 --speculative-config={} --x"})
    written = read_command(container).write(NEW)
    assert written.environment == {"MORE": "--a 1 --x"}
    assert written.args is not None
    assert written.args[0].startswith("vllm serve m $MORE --speculative-config '")


def test_kserves_variable_is_used_where_it_is_expanded() -> None:
    written = read_command(shell(KSERVE, "--", env={"VLLM_ADDITIONAL_ARGS": "--max-model-len 8"})).write({"method": "mtp"})
    assert (written.command, written.args) == (None, None)
    assert written.environment == {"VLLM_ADDITIONAL_ARGS": '--max-model-len 8 --speculative-config \'{"method":"mtp"}\''}
    assert read_command(shell(KSERVE, "--")).write({}).environment == {"VLLM_ADDITIONAL_ARGS": "--speculative-config '{}'"}
    assert read_command(shell('eval "vllm serve m"', "--")).write({}).environment == {}


def test_the_profile_depends_on_what_the_script_says_not_on_its_form() -> None:
    def digest(script: str) -> str | None:
        return read_command(shell(script)).script

    assert digest("a\n# one\nvllm serve m --x") == digest("a # two\n\nvllm serve m \\\n --x --speculative-config '{}'")
    assert digest("a\nvllm serve m") != digest("b\nvllm serve m")


# Scripts at random, read by the real shell before and after

_LETTERS = st.text(st.sampled_from("ab1 -=.,:;#&|<>()[]{}*?~!'\"\\$`é%/\t"), min_size=1, max_size=8)


@st.composite
def quoted(draw: st.DrawFn, value: str) -> str:
    """`value` as one word of a shell, quoted in some way, or in two."""
    if len(value) > 1 and draw(st.booleans()):
        at = draw(st.integers(1, len(value) - 1))
        return draw(quoted(value[:at])) + draw(quoted(value[at:]))
    match draw(st.sampled_from(["single", "double", "escaped"])):
        case "single":
            return "'" + value.replace("'", "'\\''") + "'"
        case "double":
            return '"' + "".join(f"\\{c}" if c in '\\"$`' else c for c in value) + '"'
        case _:
            return "".join(c if c.isalnum() or c in "-=.,:%/" else f"'{c}'" if c.isspace() else f"\\{c}" for c in value)


@st.composite
def spelled(draw: st.DrawFn) -> list[str]:
    """Words of one speculative flag."""
    value = draw(
        st.fixed_dictionaries({"method": st.sampled_from(["eagle3", "n'g", 'q"', "$A"]), "num_speculative_tokens": st.integers(1, 9)})
    )
    text = json.dumps(value, indent=draw(st.sampled_from([None, 1])))
    name = draw(st.sampled_from(["--speculative-config", "--speculative_config", "-sc", "--speculative-conf"]))
    if draw(st.booleans()):
        return [name + "=" + text] if draw(st.booleans()) else [name, text]
    return [f"{name}.model", draw(_LETTERS)]


@st.composite
def scripts(draw: st.DrawFn) -> tuple[str, str, str]:
    """A script in three parts: all before the first speculative flag, from there to the end of the last one, and the rest."""
    gap = st.sampled_from([" ", "  ", "\t", " \\\n  ", " \\\n"])
    plain = st.lists(st.one_of(st.just("--enforce-eager"), _LETTERS.map(lambda v: f"--served={v}"), st.just("--port=80")), max_size=3)
    lines = st.sampled_from(
        [
            "# --speculative-config '{}'\n",
            "echo a b\r\n",
            "\n",
            "A='x y'; B=\"$A\"\n",
            "true && : vllm serve x\n",
            "export C=1 # vllm serve\n",
        ]
    )
    head = "".join(draw(st.lists(lines, max_size=4))) + draw(st.sampled_from(["vllm serve m", "exec vllm serve m", "A=1 vllm serve 'm'"]))

    def words(values: list[str]) -> str:
        return "".join(draw(gap) + draw(quoted(value)) for value in values)

    flags = draw(st.lists(spelled(), max_size=2))
    between = [words(draw(plain)) for _ in flags]
    middle = "".join(
        words(flag) + (other if number < len(flags) - 1 else "") for number, (flag, other) in enumerate(zip(flags, between, strict=True))
    )
    tail = draw(st.sampled_from(["", "\n", " # --speculative-config {}\n", " 2>&1\n", " &\nwait\n", " | cat\r\n", "\n# vllm serve\n"]))
    return head + words(draw(plain)), middle, words(draw(plain)) + " --last" + tail if draw(st.booleans()) else tail


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(parts=scripts(), config=st.sampled_from([NEW, OLD, None]))
def test_any_script_keeps_all_but_its_flag(engine: Path, parts: tuple[str, str, str], config: dict[str, Any] | None) -> None:
    container = shell("".join(parts).replace("$", "$$"))
    seen = started(engine, container)
    assume(len(seen) == 1)
    try:
        speculation = fold_speculative_config(seen[0]).config
    except ArgvError:
        with pytest.raises(CommandError):
            read_command(container)
        return
    try:
        command = read_command(container)
    except CommandError as error:  # now and then it is not certain, which may be said; most scripts must be read
        assert error.reason == "TargetShellString"
        reject()
    assert command.speculation == speculation
    changed = with_written(container, command.write(config))
    script = changed["args"][0].replace("$$", "$")
    if parts[1]:
        assert script.startswith(parts[0])
        assert script.endswith(parts[2])
    else:
        before = "".join(parts)
        assert any(script.startswith(before[:at]) and script.endswith(before[at:]) for at in range(len(before) + 1))
    (argv,) = started(engine, changed)
    assert fold_speculative_config(argv).config == config
    assert fold_speculative_config(argv).args == fold_speculative_config(seen[0]).args
    flag = [] if config is None else ["--speculative-config", json.dumps(config)]
    (profiled,) = started(engine, container, [*command.run, *flag])
    assert fold_speculative_config(profiled) == fold_speculative_config([*fold_speculative_config(seen[0]).args, *flag])


@st.composite
def indirect(draw: st.DrawFn) -> tuple[dict[str, Any], bool]:  # noqa: PLR0911 - one for each place
    """A container whose flags stand in a variable, in the script's arguments or in a text that a second shell reads.

    And whether no part of the script itself is to change.
    """
    flags = draw(st.lists(spelled(), min_size=1, max_size=2))
    words = [word for flag in flags for word in flag]
    text = " ".join([draw(quoted(word)) for word in words])
    more = draw(st.sampled_from(["", "--a 1 ", "--b "]))
    match draw(st.sampled_from(["eval variable", "eval items", "items", "eval", "shell", "here", "use", "split"])):
        case "eval variable":
            script, env = 'eval "exec vllm serve m --x \\"y z\\" ${MORE} $@ --last"', {"MORE": f"{more}{text}"}
            return shell(
                script.replace("$", "$$"), "--", "--c", "'d e'", env={name: value.replace("$", "$$") for name, value in env.items()}
            ), True
        case "eval items":
            items = [draw(quoted(word)).replace("$", "$$") for word in words]
            return shell('eval "exec vllm serve m $$@ --last"', "--", *more.split(), *items), True
        case "items":
            return shell(
                'exec vllm serve m "$$@" --last', "--", *more.split(), *(word.replace("$", "$$") for word in words), "--c", "d e"
            ), True
        case "eval":
            return shell(f"eval {draw(quoted(f'vllm serve m {more}{text} --last'))}".replace("$", "$$")), False
        case "shell":
            return shell(f"exec bash -c {draw(quoted(f'vllm serve m {more}{text} --last'))}".replace("$", "$$")), False
        case "here":
            return shell(f"bash <<'END'\nvllm serve m {more}{text} --last\nEND\necho\n".replace("$", "$$")), False
        case "use":
            script = f'A={draw(quoted(json.dumps(OLD)))}\nvllm serve m {more} --speculative-config="$A" --last'
            return shell(script.replace("$", "$$")), False
        case _:
            return shell("exec vllm serve m $$MORE --last", env={"MORE": f"{more}--speculative-config={OLD_JSON} --spec-method.x 1"}), False


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(made=indirect(), config=st.sampled_from([NEW, OLD, None]))
def test_flags_that_stand_elsewhere_are_changed_there(
    engine: Path, made: tuple[dict[str, Any], bool], config: dict[str, Any] | None
) -> None:
    container, script_stays = made
    seen = started(engine, container)
    assume(len(seen) == 1)
    try:
        before = fold_speculative_config(seen[0])
    except ArgvError:
        with pytest.raises(CommandError):
            read_command(container)
        return
    try:
        command = read_command(container)
    except CommandError as error:  # an assignment that the grammar cuts short gives a variable no value
        assert error.reason in {"TargetShellString", "ArgumentFromEnvironment"}
        reject()
    assert command.speculation == before.config
    changed = with_written(container, command.write(config))
    assert not script_stays or changed["args"][0] == container["args"][0]
    (argv,) = started(engine, changed)
    assert fold_speculative_config(argv) == fold_speculative_config(with_speculative_config(before.args, config))
    flag = [] if config is None else ["--speculative-config", json.dumps(config)]
    (profiled,) = started(engine, container, [*command.run, *flag])
    assert fold_speculative_config(profiled) == fold_speculative_config(argv)
