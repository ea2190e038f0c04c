"""`tabletune explain` and `plot`: golden screens, the same from a cluster, and pictures of any profile."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from command_line import call, call_json, check_golden
from stored_example import build_files, write_files

from tabletune.formats import PROFILE, TABLE, TableFile, parse_profile, parse_table, to_profile, to_table
from tabletune.goodput import goodput
from tabletune.profile import Cell, batch_sizes
from tabletune.regimes import PrefillCell, Requests
from tabletune.table import Table, build_choices, table_of
from tabletune.verdict import Verdict, VerdictKind
from tabletune_cli.stored import parse_setting


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "files")


@pytest.mark.parametrize("columns", [80, 100])
def test_golden_screen(folder: Path, columns: int) -> None:
    out = call("explain", "--dir", str(folder), columns=columns).stdout
    assert max(len(line) for line in out.splitlines()) <= columns
    check_golden(f"explain-{columns}.txt", out)


def test_json_has_the_fields_of_the_screen(folder: Path) -> None:
    said = call_json("explain", "--dir", str(folder))
    assert (said["ranges"], said["verdict"]["kind"], said["edges"]) == ([[1, 95, 3], [96, 128, 1]], "Table", [{"before": 64, "after": 96}])
    assert said["acceptanceIntervals"][0] == {"low": pytest.approx(0.6708, abs=1e-4), "high": pytest.approx(0.6891, abs=1e-4)}
    assert said["tau"] == {"1": pytest.approx(1.68), "3": pytest.approx(2.29)}
    assert said["robustness"] == {
        "firstAcceptanceLow": 0.42,
        "firstAcceptanceHigh": 0.85,
        "rangesBelow": [[1, 63, 3], [64, 128, 1]],
        "rangesAbove": [[1, 127, 3], [128, 128, 1]],
    }
    assert [(r["name"], r["setting"], r["worst"]["batchSize"]) for r in said["rivals"]] == [
        ("Present", "k=3", 128),
        ("Best fixed", "k=3", 128),
    ]
    assert said["verdict"]["loads"] == {"ahead": [128], "level": [1, 64], "behind": []}
    assert (said["noiseAssumed"], said["capacity"]) == (False, {"speculationTokens": 518288, "offTokens": 561920})
    assert said["warnings"] == ["maxDraftLength 3 is above the 2 tokens that the drafter was trained for."]
    assert said["worstLoss"] == {"batchSize": 64, "bestFixed": "k=3", "loss": pytest.approx(0.0013, abs=1e-4)}
    assert said["predictionError"]["stepTime"]["worstAt"] == {"batchSize": 128, "setting": "k=1"}
    assert said["loads"][2]["fixedHere"]["setting"] == "k=1"


def test_says_that_the_noise_is_assumed(folder: Path) -> None:
    stored = parse_table((folder / TABLE).read_text())
    (folder / TABLE).write_text(to_table(replace(stored, noise_assumed=True)))
    out = " ".join(call("explain", "--dir", str(folder)).stdout.split())
    assert "+55.7 % over off; noise 0.8 % (assumed)" in out
    assert "against the best fixed length there (k=3); noise 0.8 % (assumed)" in out


def test_says_when_steps_with_a_prefill_count(folder: Path) -> None:
    profile = parse_profile((folder / PROFILE).read_text())
    prefill = (PrefillCell(8, 3, 200, 14_460, 100, 16),)
    (folder / PROFILE).write_text(to_profile(replace(profile, prefill=prefill, requests=Requests(180, 256))))
    out = call("explain", "--dir", str(folder)).stdout
    assert "Goodput B · τ(k) / T(B,k), steps with a prefill included, in tokens/s" in " ".join(out.split())
    assert "steps with and without a prefill, 3 repeats" in " ".join(out.split())


def test_names_graph_sizes_only_where_a_cell_lacks_its_graph(folder: Path) -> None:
    assert "cudagraph_capture_sizes" not in call("explain", "--dir", str(folder)).stdout
    profile = parse_profile((folder / PROFILE).read_text())
    facts = {"graphCells": {"mismatched": [[5, 1], [5, 2]], "cured": True}, "maxNumSeqs": 128, "captureSizes": [1, 2, 4, 8]}
    (folder / PROFILE).write_text(to_profile(replace(profile, engine={**profile.engine, **facts})))
    out = " ".join(call("explain", "--dir", str(folder)).stdout.split())
    assert "Graphs --compilation-config" in out
    assert "every batch of the draft lengths 1, 3" in out
    assert "1 cell has none now" in out  # 2 is not in the launch set


def many_batch_sizes(folder: Path) -> None:
    """The usual dense grid up to 128 and lengths 0..3, with step times that grow with B * (k + 1)."""
    profile = parse_profile((folder / PROFILE).read_text())
    cells = tuple(Cell(b, k, 3600 + 150 * k + 12 * b * (k + 1), 30, 64) for b in batch_sizes(128) for k in range(4))
    baseline = tuple(Cell(b, 0, 3500 + 11 * b, 20, 64) for b in batch_sizes(128))
    profile = replace(profile, cells=cells, baseline=baseline, skipped=())
    values = {b: {k: goodput(b, k, t, (0.68, 0.39, 0.22)) for k, t in times.items()} for b, times in profile.step_times().items()}
    choices = build_choices(values, 0.008)
    stored = parse_table((folder / TABLE).read_text())
    off = {c.batch_size: goodput(c.batch_size, 0, c.step_time_micros, ()) for c in baseline}
    (folder / PROFILE).write_text(to_profile(profile))
    (folder / TABLE).write_text(to_table(replace(stored, choices=choices, table=table_of(choices), off_goodput=off)))


def test_shows_edges_and_powers_of_two_unless_all_is_asked_for(folder: Path) -> None:
    many_batch_sizes(folder)
    short = call("explain", "--dir", str(folder)).stdout
    assert "of 36 measured batch sizes shown; --all shows every one" in short
    full = call("explain", "--dir", str(folder), "--all").stdout
    assert len(full.splitlines()) > len(short.splitlines())
    assert "--all" not in full


def without_loads(stored: TableFile) -> TableFile:
    return replace(stored, loads=(), gains=None, verdict=Verdict(VerdictKind.BLOCKED, "NotVerified", "No load was measured."), table=None)


def test_explains_a_blocked_run(folder: Path) -> None:
    (folder / TABLE).write_text(to_table(without_loads(parse_table((folder / TABLE).read_text()))))
    out = call("explain", "--dir", str(folder)).stdout
    assert "Blocked. No load was measured." in out
    assert "Table       off" in out


def test_missing_files_are_named(tmp_path: Path, folder: Path) -> None:
    (folder / TABLE).unlink()
    result = call("explain", "--dir", str(folder))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "lacks table.json" in result.stderr
    assert "lacks profile.json, acceptance.json, table.json" in call("plot", "--dir", str(tmp_path)).stderr


def test_files_of_another_format_version_are_refused(folder: Path) -> None:
    path = folder / PROFILE
    path.write_text(path.read_text().replace('"formatVersion": 1', '"formatVersion": 2'))
    assert "error FileDamaged: profile.json: formatVersion is 2" in call("explain", "--dir", str(folder)).stderr


@pytest.mark.parametrize("args", [[], ["name", "--dir", "x"], ["--dir", "x", "-n", "ns"]], ids=["nothing", "both", "namespace of a folder"])
def test_source_must_be_one(args: list[str]) -> None:
    assert call("explain", *args).stderr.startswith("error BadArgument")


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("k=3", [[1, 1, 3]]),
        ("1-64:3 65:1", [[1, 64, 3], [65, 65, 1]]),
        ("1-4:3 5-8:1 (3 run as 1)", [[1, 4, 3], [5, 8, 1]]),
        ("no speculation", None),
        ("eagle3, k=3", None),
        ("2-4:1", None),
    ],
)
def test_settings_of_live_loads_are_read_as_tables(text: str, ranges: list[list[int]] | None) -> None:
    table = parse_setting(text)
    assert (table.to_vllm() if table else None) == ranges


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def one_batch_size(folder: Path) -> None:
    profile = parse_profile((folder / PROFILE).read_text())
    stored = parse_table((folder / TABLE).read_text())
    cells = tuple(c for c in profile.cells if c.batch_size == 1)
    (folder / PROFILE).write_text(to_profile(replace(profile, cells=cells, baseline=(), skipped=())))
    (folder / TABLE).write_text(to_table(replace(stored, choices=stored.choices[:1], table=Table.fixed(3, 1), off_goodput={})))


def one_length_as_good(folder: Path) -> None:
    """The live comparison chose another table than step times favour."""
    stored = parse_table((folder / TABLE).read_text())
    verdict = Verdict(VerdictKind.FIXED, "FixedLengthPays", "One length (k=3) is as good as a table.")
    (folder / TABLE).write_text(to_table(replace(stored, table=Table.fixed(3, 128), verdict=verdict)))


def test_says_so_when_the_live_comparison_overrules_step_times(folder: Path) -> None:
    assert "Choices  " not in call("explain", "--dir", str(folder)).stdout
    one_length_as_good(folder)
    out = call("explain", "--dir", str(folder)).stdout
    assert "Fixed. One length (k=3) is as good as a table." in out
    assert "Choices     are what step times favour; the live comparison decided for 1-128:3 (verdict above)" in out


def present_wins(folder: Path) -> None:
    stored = parse_table((folder / TABLE).read_text())
    verdict = Verdict(VerdictKind.PRESENT, "PresentPays", "The present setting (k=3) gives +3.0 % tokens/s over the table.")
    (folder / TABLE).write_text(to_table(replace(stored, table=None, verdict=verdict)))


def test_says_that_the_present_setting_stays(folder: Path) -> None:
    present_wins(folder)
    out = call("explain", "--dir", str(folder)).stdout
    assert "Verdict     Present. The present setting (k=3) gives +3.0 % tokens/s over the table." in out
    assert "Table       none: the present setting stays (k=3)" in out
    assert "the live comparison decided for the present setting (verdict above)" in " ".join(out.split())


def blocked(folder: Path) -> None:
    (folder / TABLE).write_text(to_table(without_loads(parse_table((folder / TABLE).read_text()))))


def as_it_is(folder: Path) -> None:
    """The example."""


def with_prefills(folder: Path) -> None:
    """One batch size is none of the table's, and one cell has no decode-only step to compare with."""
    profile = parse_profile((folder / PROFILE).read_text())
    prefill = tuple(PrefillCell(b, k, tokens, 14_460, 100, 16) for b, k, tokens in ((8, 1, 60), (8, 3, 200), (96, 1, 200), (100, 3, 9000)))
    changed = replace(profile, prefill=prefill, baseline_prefill=(PrefillCell(8, 0, 200, 7340, 100, 16),), requests=Requests(180, 256))
    (folder / PROFILE).write_text(to_profile(changed))


def test_plots_both_regimes_where_the_profile_has_them(folder: Path, tmp_path: Path) -> None:
    with_prefills(folder)
    paths = call("plot", "--dir", str(folder), "--out", str(tmp_path)).stdout.splitlines()
    assert [Path(path).name for path in paths] == ["step-time.png", "step-time-prefill.png", "goodput.png"]
    assert {png_size(Path(path)) for path in paths} == {(1200, 750)}
    pictures = [Path(path).read_bytes() for path in paths]
    assert len(set(pictures)) == 3


@pytest.mark.parametrize("change", [as_it_is, many_batch_sizes, one_batch_size, one_length_as_good, present_wins, blocked])
def test_plots_any_profile(folder: Path, tmp_path: Path, change: object) -> None:
    assert callable(change)
    change(folder)
    out = tmp_path / "new" / "out"
    result = call("plot", "--dir", str(folder), "--out", str(out))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [str(out / "step-time.png"), str(out / "goodput.png")]
    assert {png_size(Path(path)) for path in result.stdout.splitlines()} == {(1200, 750)}


def test_plot_into_a_file_is_refused(folder: Path) -> None:
    assert call("plot", "--dir", str(folder), "--out", str(folder / TABLE)).stderr.startswith("error CannotWrite")


class Cluster(BaseHTTPRequestHandler):
    """Answers one read as an API server does."""

    def do_GET(self) -> None:
        found = self.path == "/api/v1/namespaces/llm/configmaps/chat-tabletune"
        body = {"kind": "ConfigMap", "data": build_files()} if found else {"kind": "Status", "code": 404}
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_args: object) -> None:
        """Quiet."""


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    server = HTTPServer(("127.0.0.1", 0), Cluster)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    path = tmp_path / "kubeconfig"
    config = {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "me", "namespace": "llm"}}],
        "clusters": [{"name": "it", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "me", "user": {}}],
    }
    path.write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    yield path
    server.shutdown()
    thread.join()
    server.server_close()


def test_reads_the_config_map_of_a_cluster(kubeconfig: Path, folder: Path) -> None:
    from_folder = call("explain", "--dir", str(folder)).stdout
    assert call("explain", "chat", "-n", "llm").stdout == from_folder
    assert call("explain", "chat").stdout == from_folder  # the context's namespace


def test_absent_config_map_is_named(kubeconfig: Path) -> None:
    result = call("explain", "other", "-n", "llm")
    assert result.stderr.startswith("error NotFound: ConfigMap other-tabletune is not in namespace llm.")
    assert result.exit_code == 2


def test_unreachable_cluster_is_said(kubeconfig: Path) -> None:
    config = json.loads(kubeconfig.read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        config["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{free.getsockname()[1]}"
    kubeconfig.write_text(json.dumps(config))
    result = call("explain", "chat")
    assert result.stderr.startswith("error ClusterUnreachable")
    assert len(result.stderr.splitlines()) == 1


def test_no_kubeconfig_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert call("explain", "chat").stderr.startswith("error NoCluster")
