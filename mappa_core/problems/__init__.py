"""Where problems come from: generators and readers, each with disjoint splits and the Keys kept apart."""
