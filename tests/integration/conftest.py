"""Fixtures of the integration tests."""

import harness
import pytest

pytest.register_assert_rewrite("balancers")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    if call.when == "call":
        item.failed_in_call = outcome.get_result().failed


@pytest.fixture
def site(request, tmp_path):
    """Programs and files of one test; prints the logs when the test fails."""
    place = harness.Site(tmp_path)
    yield place
    problems = place.close()
    if problems or getattr(request.node, "failed_in_call", False):
        print(place.logs())
    assert not problems, problems
