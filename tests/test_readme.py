"""The README's examples print what the README says. A failure means: run the example, and mend the text."""

import doctest
from pathlib import Path


def test_readme_examples_are_real():
    readme = Path(__file__).parents[1] / "README.md"
    result = doctest.testfile(str(readme), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 10
    assert result.failed == 0
