"""Shell scripts, read and never run: which commands they would call, with which words, as far as one can know.

>>> from dumpdiff.triage.shell import commands
>>> [word.text for word in commands("N=8; torchrun --nproc_per_node ${N:-1} train.py").calls[0].words]
['torchrun', '--nproc_per_node', '8', 'train.py']
"""

from .script import Call, Script, read_script
from .words import Word

__all__ = ["Call", "Script", "Word", "read_script"]
