"""One method, one file: a settings dataclass and a `Selector` with `weights`, `penalty`, `plan`."""
