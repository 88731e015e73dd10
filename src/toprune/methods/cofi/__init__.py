"""CoFi (ACL 2022): structured pruning of weights, by masks on their parts."""
