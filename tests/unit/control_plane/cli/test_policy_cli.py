"""`penstock policy`: lint, verify, diff and what-if offline, and their errors."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from control_plane.cli import demand_file
from control_plane.evaluation.evaluation_jobs import LiveFleet, WhatIfJob, run_job
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from control_plane.policy.schema import schema_text
from tests.support.cli import run
from tests.support.git_repositories import PolicyRepository, bundle_files, git_over_http
from tests.support.paths import POLICIES


def test_lint_accepts_a_valid_bundle() -> None:
    result = run("policy", "lint", str(POLICIES / "planet"))
    assert result.exit_code == 0
    assert "good, 5 regions, 2 models, 4 tenants, 3 residency rules" in result.stdout


def test_lint_prints_every_error(tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(POLICIES / "planet", tmp_path / "bundle"))
    for name in ("spillover.yaml", "failover.yaml"):
        (bundle / name).write_text((bundle / name).read_text().replace("kind:", "kinds:"))
    result = run("policy", "lint", str(bundle))
    assert result.exit_code == 1
    assert "failover.yaml:2: has no kind; write `kind`" in result.stdout
    assert "spillover.yaml:2: has no kind; write `kind`" in result.stdout
    assert "refused, 2 error(s)" in result.stderr


def test_lint_and_verify_warn_of_an_event_that_is_over(tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(POLICIES / "planet", tmp_path / "bundle"))
    event = {"kind": "Event", "name": "launch", "starts_at": "2020-01-01T09:00Z", "duration_s": 60, "factor": 2}
    (bundle / "events.yaml").write_bytes(msgspec.yaml.encode({"apiVersion": "penstock/v1", **event}))
    for command in ("lint", "verify"):
        result = run("policy", command, str(bundle), "-o", "json")
        (warning,) = msgspec.json.decode(result.stdout)["warnings"]
        assert warning.startswith("event launch (events.yaml:"), result.stdout
    assert "warning: event launch (events.yaml:" in run("policy", "lint", str(bundle)).stderr


def test_lint_prints_json(tmp_path: Path) -> None:
    good = run("policy", "lint", str(POLICIES / "planet"), "-o", "json")
    assert msgspec.json.decode(good.stdout)["residency_rules"] == 3
    (tmp_path / "one.yaml").write_text("kind: Nonsense\n")
    bad = run("policy", "lint", str(tmp_path), "-o", "json")
    assert bad.exit_code == 1
    assert {"good": False}.items() <= msgspec.json.decode(bad.stdout).items()
    assert any(error["field"] == "kind" for error in msgspec.json.decode(bad.stdout)["errors"])


def test_lint_refuses_a_missing_folder() -> None:
    assert run("policy", "lint", "/nowhere/at/all").exit_code == 2


@pytest.mark.parametrize("repository", ["https://[::1", "ext::sh", "nowhere"])
def test_lint_refuses_a_folder_without_a_repository(repository: str) -> None:
    result = run("policy", "lint", f"{repository}@main:policies")
    assert result.exit_code == 2
    assert result.stderr.startswith("penstock policy lint: the repository is n")


def test_lint_never_prints_the_password_of_a_repository(tmp_path: Path) -> None:
    repository = PolicyRepository(tmp_path / "policy")
    with git_over_http(repository, "s3cret") as url:
        there = url.replace("//", "//penstock:s3cret@")
        repository.commit(bundle_files(POLICIES / "planet"))
        good = run("policy", "lint", f"{there}@main")
        repository.commit({"one.yaml": b"kind: Nothing\n"})
        bad = run("policy", "lint", f"{there}@main")
        without_ref = [run("policy", "lint", f"{there}{end}") for end in ("", "@", "@:policies")]
    assert good.stdout.startswith(f"{url}@main: good, 5 regions")
    assert bad.stderr.startswith(f"{url}@main: refused, ")
    assert [result.exit_code for result in without_ref] == [2, 2, 2]
    for result in (good, bad, *without_ref):
        assert "s3cret" not in result.stdout + result.stderr
    assert "give a folder, or REPOSITORY@REF:FOLDER" in without_ref[0].stderr


def test_verify_accepts_a_valid_bundle() -> None:
    result = run("policy", "verify", str(POLICIES / "planet"))
    assert result.exit_code == 0
    assert "good: no forbidden region or model can be reached" in result.stdout
    assert "not without us-east (accepted)" in result.stdout


def test_verify_lists_losses_with_their_rules(tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(POLICIES / "planet", tmp_path / "bundle"))
    text = (bundle / "residency.yaml").read_text()
    (bundle / "residency.yaml").write_text(text[: text.index("---\napiVersion: penstock/v1\nkind: AcceptedLoss")])
    result = run("policy", "verify", str(bundle))
    assert result.exit_code == 1
    reported = " ".join(result.stdout.split())
    assert "DOES NOT SURVIVE: us-restricted, client anywhere: without us-east no permitted region is left" in reported
    assert "us-restricted-stays-in-us (residency.yaml:" in reported
    assert "where this is meant, write an AcceptedLoss with the regions of the class" in reported
    verdict = msgspec.json.decode(run("policy", "verify", str(bundle), "-o", "json").stdout)
    assert verdict["good"] is False
    assert [row["regions"] for row in verdict["classes"] if not row["survives_any_one"]] == [["us-east"]]


def test_verify_refuses_an_invalid_bundle(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("kind: Nothing\n")
    result = run("policy", "verify", str(tmp_path))
    assert result.exit_code == 2
    assert "one.yaml:1" in result.stderr


@pytest.fixture
def opened(tmp_path: Path) -> str:
    """The shipped bundle, with Japan permitted for data that had to stay in the United States."""
    bundle = Path(shutil.copytree(POLICIES / "planet", tmp_path / "opened"))
    text = (bundle / "residency.yaml").read_text()
    (bundle / "residency.yaml").write_text(text.replace("jurisdictions: [US]", "jurisdictions: [US, JP]"))
    return str(bundle)


def test_diff_lists_the_differences(opened: str) -> None:
    result = run("policy", "diff", str(POLICIES / "planet"), opened)
    assert result.stdout == 'ResidencyRule us-restricted-stays-in-us allow: ["us-east"] -> ["jp-tok","us-east"]\n'
    (change,) = msgspec.json.decode(run("policy", "diff", str(POLICIES / "planet"), opened, "-o", "json").stdout)
    assert change["after"] == ["jp-tok", "us-east"]


def test_a_bundle_at_a_branch_or_tag(opened: str, tmp_path: Path) -> None:
    repository = PolicyRepository(tmp_path / "repository")
    files = {f"policies/{path.name}": path.read_bytes() for path in (POLICIES / "planet").iterdir()}
    commit = repository.commit(files)
    repository.tag("v1", commit)
    for ref in ("main", "v1"):
        result = run("policy", "diff", f"{tmp_path / 'repository'}@{ref}:policies", opened)
        assert result.stdout.startswith("ResidencyRule us-restricted-stays-in-us allow"), result.stderr
    assert run("policy", "lint", f"{tmp_path / 'repository'}@main:policies").exit_code == 0
    result = run("policy", "verify", f"{tmp_path / 'repository'}@nowhere:policies")
    assert (result.exit_code, "has no branch or tag nowhere" in result.stderr) == (2, True)


def test_what_if_lists_the_effects_of_a_change(opened: str) -> None:
    result = run("policy", "simulate", str(POLICIES / "planet"), opened)
    assert result.exit_code == 0
    assert "us-east -> jp-tok+us-east" in result.stdout


def test_what_if_requires_a_demand_file_for_a_large_policy(opened: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand_file, "MAX_ROWS", 100)
    result = run("policy", "simulate", opened, opened)
    assert (result.exit_code, "to generate demand; give --demand" in result.stderr) == (2, True)


def test_what_if_reads_demand_and_fleet_from_files(opened: str, tmp_path: Path) -> None:
    demand, fleet = tmp_path / "demand.csv", tmp_path / "fleet.csv"
    demand.write_text(
        "origin,tenant,country,model,requests_per_s\njp-tok,us-restricted,JP,llama-3.1-8b,10\n"
        "us-east,us-restricted,US,llama-3.1-8b,10\n"
    )
    fleet.write_text("region,model,slots,service_s\njp-tok,llama-3.1-8b,100,1\nus-east,llama-3.1-8b,100,1\n")
    given = [str(POLICIES / "planet"), opened, "--demand", str(demand), "--fleet", str(fleet), "-o", "json"]
    found = msgspec.json.decode(run("policy", "simulate", *given).stdout)
    (move,) = found["moves"]
    assert (move["source"], move["target"], move["requests_per_s"]) == ("us-east", "jp-tok", 10.0)
    assert found["before"]["round_trip_ms"] > found["after"]["round_trip_ms"]
    lost = msgspec.json.decode(run("policy", "simulate", *given, "--already-lost", "us-east").stdout)
    assert lost["before"]["refused_per_s"] == {"none_ready": 20.0}
    assert lost["after"]["refused_per_s"] == {}
    lost = msgspec.json.decode(run("policy", "simulate", *given, "--lost", "us-east").stdout)
    assert lost["before"] == found["before"], "the region fails on the new side alone"
    assert {move["target"] for move in lost["moves"]} == {"jp-tok"}


def test_a_simulation_equals_the_evaluation_of_a_control_plane(opened: str, tmp_path: Path) -> None:
    planet = POLICIES / "planet"
    regions, models = ("jp-tok", "us-east", "eu-de", "eu-es"), ("llama-3.1-8b",)
    demand = [
        {"origin": origin, "tenant": tenant, "country": country, "model": models[0], "requests_per_s": rate}
        for origin, tenant, country, rate in (
            ("jp-tok", "us-restricted", "JP", 10.0),
            ("us-east", "us-restricted", "US", 30.0),
            ("eu-de", "eu-personal", "DE", 25.0),
            ("", "open", "FR", 40.0),
        )
    ]
    fleet = [{"region": region, "model": models[0], "slots": 40, "service_s": 1.0} for region in regions]
    files = [tmp_path / "demand.jsonl", tmp_path / "fleet.jsonl"]
    for file, rows in zip(files, (demand, fleet), strict=True):
        file.write_text("".join(msgspec.json.encode(row).decode() + "\n" for row in rows))
    given = ["--demand", str(files[0]), "--fleet", str(files[1]), "--lost", "us-east", "--already-lost", "eu-es"]
    simulated = msgspec.json.decode(run("policy", "simulate", str(planet), opened, *given, "-o", "json").stdout)
    change = {"files": read_folder(Path(opened)), "lost": ["us-east"], "lost_before": ["eu-es"]}
    asked = msgspec.json.encode(change | {"demand": demand, "fleet": fleet})
    answer = run_job(WhatIfJob(compile_bundle(read_folder(planet)), asked, LiveFleet(0.0)))
    evaluated = msgspec.json.decode(msgspec.json.encode(answer))
    assert simulated == {name: evaluated[name] for name in ("before", "after", "moved_per_s", "moves")}
    assert simulated["before"] != simulated["after"]
    assert simulated["moves"]


def test_what_if_refuses_unreadable_files(opened: str) -> None:
    planet = str(POLICIES / "planet")
    result = run("policy", "simulate", planet, opened, "--demand", "/nowhere.csv")
    assert (result.exit_code, "/nowhere.csv: cannot be read" in result.stderr) == (2, True)
    result = run("policy", "simulate", planet, opened, "--lost", "eu-dee")
    assert (result.exit_code, "no region eu-dee" in result.stderr) == (2, True)


def test_what_if_suggests_the_name_of_a_misspelt_region(opened: str, tmp_path: Path) -> None:
    demand, fleet = tmp_path / "demand.csv", tmp_path / "fleet.csv"
    demand.write_text("origin,tenant,country,model,requests_per_s\neu-dee,open,DE,llama-3.1-8b,5\n")
    fleet.write_text("region,model,slots,service_s\neu-dd,llama-3.1-8b,5,1\n")
    for given in (("--demand", str(demand)), ("--fleet", str(fleet))):
        result = run("policy", "simulate", str(POLICIES / "planet"), opened, *given)
        assert (result.exit_code, "no region eu-d" in result.stderr) == (2, True)
        assert "is one of eu-de, eu-es, eu-gb, jp-tok, us-east" in result.stderr
    fleet.write_text("region,model,slots,service_s\neu-de,llama-3.1-8B,5,1\n")
    result = run("policy", "simulate", str(POLICIES / "planet"), opened, "--fleet", str(fleet))
    assert (result.exit_code, "no model llama-3.1-8B in either bundle" in result.stderr) == (2, True)


def test_schema_prints_the_json_schema() -> None:
    assert run("policy", "schema").stdout == schema_text()


def test_every_policy_command_is_registered_under_its_name() -> None:
    listed = run("policy", "--help").stdout
    commands = ("lint", "verify", "diff", "simulate", "schema", "revisions", "apply", "rollback")
    assert [name for name in commands if name not in listed] == []
    assert run("policy", "rollback", "--help").exit_code == 0
    assert run("policy", "run", "--help").exit_code == 2


def test_init_writes_a_bundle_that_verify_accepts(tmp_path: Path) -> None:
    bundle = tmp_path / "new"
    regions = ["--region", "eu-de=DE", "--region", "asia-tokyo=Asia/Tokyo"]
    stay = ["--stay-in", "EEA", "--stay-in", "JP"]
    result = run("policy", "init", str(bundle), *regions, *stay, "--model", "m", "-o", "json")
    assert result.exit_code == 0, result.stderr
    keys = msgspec.json.decode(result.stdout)["api_keys"]
    assert (set(keys), len(set(keys.values()))) == ({"everybody", "eea", "jp"}, 3)
    assert run("policy", "verify", str(bundle)).exit_code == 0
    rules = {rule.name: rule.allow for rule in compile_bundle(read_folder(bundle)).residency}
    assert rules == {"eea-stays": {"eu-de"}, "jp-stays": {"asia-tokyo"}}
    twice = run("policy", "init", str(tmp_path / "twice"), *regions, *regions, "--model", "m")
    assert (twice.exit_code, "each --region once" in twice.stderr) == (2, True)
    file = run("policy", "init", str(bundle / "models.yaml"), *regions, "--model", "m")
    assert (file.exit_code, "not an empty folder" in file.stderr) == (2, True)
    again = run("policy", "init", str(bundle), *regions, "--model", "m")
    assert "is not an empty folder; name a new one" in again.stderr


@pytest.mark.parametrize(
    ("region", "model", "place", "message"),
    [
        ("eu=Nowhere", "m", "EU", "Nowhere is no country and no time zone"),
        ("Eu=DE", "m", "EU", "use 1 to 63 lower-case letters"),
        ("eu", "m", "EU", "write each --region once, as NAME=PLACE"),
        ("eu=DE", "/m", "EU", "models.yaml"),
        ("eu=DE", "m", "EUU", "EUU is not a country or bloc; did you mean EU?"),
        ("eu=DE", "m", "GCC", "allows no region"),
    ],
)
def test_init_refuses_invalid_names_and_writes_nothing(
    tmp_path: Path, region: str, model: str, place: str, message: str
) -> None:
    options = ("--region", region, "--model", model, "--stay-in", place)
    result = run("policy", "init", str(tmp_path / "new"), *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "new").exists()
