"""The tools that a model is offered: their names, arguments and answers."""
