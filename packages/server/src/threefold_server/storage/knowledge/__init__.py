"""Knowledge above facts: beliefs with their support and history, experiments, and clearances of the gate."""
