"""Read shell scripts without running them: which commands they call, with which words.

>>> from dumpdiff.run_settings.shell import read_script
>>> script = read_script("N=8; torchrun --nproc_per_node ${N:-1} train.py")
>>> [word.text for word in script.calls[0].words]
['torchrun', '--nproc_per_node', '8', 'train.py']
"""

from .interpreter import Call
from .script import Script, read_script
from .words import Word

__all__ = ["Call", "Script", "Word", "read_script"]
