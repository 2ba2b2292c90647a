"""The models of :mod:`architecture` as a MindSpore user would write them, for graph mode on CPU.

``decoder`` and ``resnet`` hold the networks, ``step`` what runs one training step; the rest are
their parts. A clean model holds no trace of a knob: every ``if self.knob`` is decided when the
graph is compiled. The graph parser knows a cell's methods only by a first argument called ``self``.
"""
