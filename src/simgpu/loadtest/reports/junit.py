"""`junit.xml`, with the names that ClusterLoader2 gives to test cases."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from simgpu.loadtest.running.results import RunResult

SUITE = "ClusterLoaderV2"


def document(results: Sequence[RunResult]) -> bytes:
    """Return the document of one or more runs."""
    suite = ElementTree.Element("testsuite", name=SUITE)
    tests = failures = skips = 0
    for result in results:
        own = [*result.errors, *(error for case in result.cases for error in case.errors)]
        title = f"{result.scenario} overall ({result.config})"
        cases = [(title, result.seconds, own, "")]
        cases += [(f"{result.scenario}: {case.name}", case.seconds, case.errors, case.skipped) for case in result.cases]
        for name, seconds, errors, skipped in cases:
            tests += 1
            failures += bool(errors)
            skips += bool(skipped and not errors)
            case = ElementTree.SubElement(suite, "testcase", name=_clean(name), classname=SUITE, time=f"{seconds:.3f}")
            if errors:
                ElementTree.SubElement(case, "failure", type="Failure").text = _clean("\n".join(errors))
            elif skipped:
                ElementTree.SubElement(case, "skipped", message=_clean(skipped))
    counts = {"tests": tests, "failures": failures, "errors": 0, "skipped": skips}
    for key, value in counts.items():
        suite.set(key, str(value))
    suite.set("time", f"{sum(result.seconds for result in results):.3f}")
    ElementTree.indent(suite)
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))


def _clean(text: str) -> str:
    """Return text without characters that XML cannot have."""
    return "".join(char if char in "\t\n" or (char.isprintable() and char != "\ufffe") else "?" for char in text)
