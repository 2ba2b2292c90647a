"""Reports of the stages before and beside the dumps, one module each; ``parts`` is what all of them are made of."""
