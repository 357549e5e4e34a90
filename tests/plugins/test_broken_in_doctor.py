"""`aurora doctor` mentions broken plugins, and does not refuse to run because of them."""

from __future__ import annotations

from aurora_core import doctor


def test_broken_plugins_are_found(install):
    install("broken")
    # Plugins that work add findings about their engines under other subjects.
    working, *broken = (one for one in doctor.plugins() if one.subject == "plugins")
    assert working.state == "ok" and "'core'" in working.detail
    assert broken and {finding.state for finding in broken} == {"limited"}
    assert any("No module named 'aurora_nowhere'" in finding.detail for finding in broken)
