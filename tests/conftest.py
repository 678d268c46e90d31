"""At the end of a run, in one line: how much the gradient-check contract has checked.

The numbers come with the reports of the tests (`record_property`), so they also arrive from the workers of pytest-xdist.
"""


def pytest_terminal_summary(terminalreporter):
    stats = terminalreporter.stats
    reports = [r for r in stats.get("passed", []) + stats.get("failed", []) if r.when == "call"]
    rows = [numbers for report in reports for key, numbers in report.user_properties if key == "contract"]
    if not rows:
        return

    def count(key):
        return len({row[key] for row in rows if "compared" in row})

    def total(key):
        return sum(row.get(key, 0) for row in rows)

    terminalreporter.write_line(
        f"contract: {count('op')} ops, {count('sample')} samples, {count('device')} devices: "
        f"{total('compared'):,} gradients compared, "
        f"largest relative error {max(row.get('relative', 0) for row in rows):.1e}; "
        f"{total('caught'):,} of {total('planted'):,} planted errors caught")
