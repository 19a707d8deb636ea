"""How tensors lie over a batch of requests, and the executor that is the specification."""
