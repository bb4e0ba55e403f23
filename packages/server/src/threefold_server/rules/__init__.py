"""Pure rules: who may see what, what fits a budget, how results are ranked. No storage, no models, no I/O."""
