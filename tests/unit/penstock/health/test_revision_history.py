from penstock.health.revision_history import RevisionHistory

HOLD_S = 60.0
"""As documented, and not imported: a test fails if a tuned constant changes."""


def reports(history: RevisionHistory, now: float, *, differs: bool, expected: str = "A", endpoint: str = "gpu") -> bool:
    return history.is_held(endpoint, "m", expected, now, differs=differs)


def test_an_endpoint_whose_reports_alternate_has_to_report_the_expected_revision_for_a_while() -> None:
    history = RevisionHistory()
    assert not reports(history, 0.0, differs=False)
    for now in (10.0, 30.0, 50.0):
        assert not reports(history, now, differs=True), "it is refused for its report"
        assert reports(history, now + 10.0, differs=False)
    assert reports(history, 60.0 + HOLD_S - 1.0, differs=False)
    assert not history.is_due(60.0 + HOLD_S - 1.0)
    assert history.is_due(60.0 + HOLD_S)
    assert not history.is_due(60.0 + HOLD_S)
    assert not reports(history, 60.0 + HOLD_S, differs=False)


def test_neither_a_change_of_policy_nor_the_first_good_report_waits() -> None:
    history = RevisionHistory()
    reports(history, 0.0, differs=True)
    assert not reports(history, 1.0, differs=False), "it never was accepted"
    reports(history, 2.0, differs=True, expected="B")
    assert not reports(history, 3.0, differs=False, expected="B"), "the policy changed, and then the engine"
    reports(history, 4.0, differs=True, expected="B")
    assert reports(history, 5.0, differs=False, expected="B")
    assert not reports(history, 6.0, differs=False, expected="C")


def test_endpoints_that_are_gone_are_forgotten() -> None:
    history = RevisionHistory()
    for endpoint in ("gpu", "other"):
        reports(history, 0.0, differs=False, endpoint=endpoint)
        reports(history, 1.0, differs=True, endpoint=endpoint)
    history.keep({"other"})
    assert not reports(history, 2.0, differs=False)
    assert reports(history, 2.0, differs=False, endpoint="other")
