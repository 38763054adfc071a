"""fedsim as a Flower app: ``flwr run`` trains what a YAML file describes."""
