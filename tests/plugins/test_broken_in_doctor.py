"""`aurora doctor` mentions broken plugins, and does not refuse to run because of them."""

from __future__ import annotations

from aurora_core import doctor


def test_broken_plugins_are_found(install):
    install("broken")
    working, *broken = doctor.plugins()
    assert working.state == "ok" and "'core'" in working.detail
    assert {finding.state for finding in broken} == {"limited"}
    assert any("No module named 'aurora_nowhere'" in finding.detail for finding in broken)
