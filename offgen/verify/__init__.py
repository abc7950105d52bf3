"""Does an output hold every input row exactly once, in files that are as they were written? Finds and tells; repairs
nothing.
"""

from offgen.verify.check import Verdict, verify_output

__all__ = ["Verdict", "verify_output"]
